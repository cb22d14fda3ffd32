"""Building and timing of configurations in killable children. No SQL; TVM only in children."""
