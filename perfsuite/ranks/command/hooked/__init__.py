"""The folder that comes first on the module path of a command's processes."""
