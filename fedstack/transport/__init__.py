"""How bytes get there: channels and credentials, targets, deadlines and retry, errors as statuses, frames, leases."""
