"""The schema as the log teaches it: values (`model`), the hard-coded system_schema tables (`system`), learning (`learn`)."""
