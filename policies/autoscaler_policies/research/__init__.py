"""Published rules: DS2 and Daedalus."""
