"""The exact plan solver: regions enumerated, costs as intervals, an integer program over values in layouts."""
