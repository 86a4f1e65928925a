"""The built-in policies, shipped as a plug-in package like anyone's."""
