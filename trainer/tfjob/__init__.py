"""`trainer convert-tfjob`: a Kubeflow TFJob as values of the chart."""
