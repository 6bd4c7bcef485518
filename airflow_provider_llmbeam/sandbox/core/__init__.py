"""What every service of the sandbox is built from: clock, faults, records, REST requests and responses."""
