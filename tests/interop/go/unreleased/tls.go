// Built beside ../driver.go with a client that is newer than 2.1.2, which has no TLS.
package main

import (
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

func init() {
	producerTls = func() producer.Option { return producer.WithTls(true) }
	consumerTls = func() consumer.Option { return consumer.WithTls(true) }
}
