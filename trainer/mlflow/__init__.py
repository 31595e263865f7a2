"""Runs and versions of models in MLflow. Only this package imports `mlflow`."""
