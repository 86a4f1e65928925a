"""The built-in policies. They are plug-ins like those of any other package."""
