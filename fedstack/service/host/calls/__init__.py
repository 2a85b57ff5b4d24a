"""What happens to a call, regardless of the transport: its route, its slot, its time limits, its count and its log."""
