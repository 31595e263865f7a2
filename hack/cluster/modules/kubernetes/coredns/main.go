// CoreDNS with only the four plugins that the cluster's Corefile (see kubernetes.py) uses. Most of the other plugins serve
// clouds, whose libraries take minutes to compile.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
)

func init() {
	dnsserver.Directives = []string{"ready", "errors", "cache", "kubernetes"}
}

func main() {
	coremain.Run()
}
