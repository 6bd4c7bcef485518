"""Common parts of the sandbox's services: clock, faults, records, REST requests and responses."""
