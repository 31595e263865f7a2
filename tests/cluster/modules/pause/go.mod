module distributed-tensorflow/tests/cluster/pause

go 1.26.0

tool distributed-tensorflow/tests/cluster/pause
