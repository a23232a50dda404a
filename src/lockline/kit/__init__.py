"""What people come for, on the line of claims: several locks at once, a leader, once, once per period, a pool."""
