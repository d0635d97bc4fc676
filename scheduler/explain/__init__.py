"""Why a chain was ordered so: charts, comparisons, what-if, earlier rounds again."""
