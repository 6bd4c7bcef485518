"""The emulated permissions, APIs of projects, accounts and subnetworks."""
