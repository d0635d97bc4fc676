"""The mobile agent: orders the aggregations of a round."""
