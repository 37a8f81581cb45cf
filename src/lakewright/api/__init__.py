"""The public Python API: functions and classes that parse arguments and call the library."""
