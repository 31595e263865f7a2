"""`trainer convert-tfjob`: convert a Kubeflow TFJob to values of the chart."""
