"""The emulated permissions, APIs of projects, accounts, subnetworks and keys."""
