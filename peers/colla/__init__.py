"""Colla (SEC 2019): a cloud and devices learn together, each with a model of its size."""
