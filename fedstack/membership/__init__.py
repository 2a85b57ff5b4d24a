"""Who is there: peers that are dialled and may be lost, and how long callers wait for them."""
