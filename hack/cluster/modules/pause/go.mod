module distributed-tensorflow/hack/cluster/pause

go 1.26.0

tool distributed-tensorflow/hack/cluster/pause
