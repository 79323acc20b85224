// Steers the unchanged RocketMQ Go client from a test. The line protocol is told in ../driver.py.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

type request struct {
	Op, Name, Group, Namesrv, Producer, Topic, Tag string
	Bodies                                         []string
	Topics                                         map[string]string
	FailTag                                        string `json:"fail_tag"`
	TraceTopic                                     string `json:"trace_topic"`
	Trace                                          bool
	AccessKey                                      string `json:"access_key"`
	SecretKey                                      string `json:"secret_key"`
	Tls                                            bool
}

// Set where the client can do TLS: unreleased/tls.go.
var (
	producerTls func() producer.Option
	consumerTls func() consumer.Option
	errNoTls    = errors.New("this client has no TLS")
)

var (
	producers = map[string]rocketmq.Producer{}
	consumers = map[string]rocketmq.PushConsumer{}
	output    sync.Mutex
)

func write(line map[string]any) {
	text, _ := json.Marshal(line)
	output.Lock()
	defer output.Unlock()
	fmt.Println(string(text))
}

func run(r request) (any, error) {
	switch r.Op {
	case "producer":
		options := []producer.Option{
			producer.WithNameServer([]string{r.Namesrv}), producer.WithGroupName(r.Group),
			producer.WithInstanceName(r.Name), producer.WithCredentials(account(r))}
		if r.Trace {
			options = append(options, producer.WithTrace(tracing(r)))
		}
		if r.Tls {
			if producerTls == nil {
				return nil, errNoTls
			}
			options = append(options, producerTls())
		}
		made, err := rocketmq.NewProducer(options...)
		if err == nil {
			err = made.Start()
		}
		producers[r.Name] = made
		return nil, err
	case "consumer":
		return nil, consume(r)
	case "send":
		receipts := []any{}
		for _, body := range r.Bodies {
			message := primitive.NewMessage(r.Topic, []byte(body))
			if r.Tag != "" {
				message.WithTag(r.Tag)
			}
			sent, err := producers[r.Producer].SendSync(context.Background(), message)
			if err != nil {
				return nil, err
			}
			receipts = append(receipts, map[string]any{"id": sent.MsgID, "queue_offset": sent.QueueOffset})
		}
		return receipts, nil
	case "shutdown":
		if made, found := producers[r.Name]; found {
			return nil, made.Shutdown()
		}
		return nil, consumers[r.Name].Shutdown()
	}
	return nil, fmt.Errorf("unknown op %s", r.Op)
}

func tracing(r request) *primitive.TraceConfig {
	return &primitive.TraceConfig{
		TraceTopic: r.TraceTopic, GroupName: r.Group, Access: primitive.Local, NamesrvAddrs: []string{r.Namesrv}}
}

// What requests are signed with; those of an empty account are not.
func account(r request) primitive.Credentials {
	return primitive.Credentials{AccessKey: r.AccessKey, SecretKey: r.SecretKey}
}

func consume(r request) error {
	options := []consumer.Option{
		consumer.WithNameServer([]string{r.Namesrv}), consumer.WithGroupName(r.Group), consumer.WithInstance(r.Name),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset), consumer.WithCredentials(account(r))}
	if r.Trace {
		options = append(options, consumer.WithTrace(tracing(r)))
	}
	if r.Tls {
		if consumerTls == nil {
			return errNoTls
		}
		options = append(options, consumerTls())
	}
	made, err := rocketmq.NewPushConsumer(options...)
	if err != nil {
		return err
	}
	handle := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		result := consumer.ConsumeSuccess
		for _, message := range messages {
			write(map[string]any{
				"event": "message", "consumer": r.Name, "body": string(message.Body), "tag": message.GetTags(),
				"topic": message.Topic, "reconsume_times": message.ReconsumeTimes,
			})
			if r.FailTag != "" && message.GetTags() == r.FailTag && message.ReconsumeTimes == 0 {
				result = consumer.ConsumeRetryLater
			}
		}
		return result, nil
	}
	for topic, tags := range r.Topics {
		selector := consumer.MessageSelector{Type: consumer.TAG, Expression: tags}
		if err := made.Subscribe(topic, selector, handle); err != nil {
			return err
		}
	}
	consumers[r.Name] = made
	return made.Start()
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var wanted request
		err := json.Unmarshal(lines.Bytes(), &wanted)
		var result any
		if err == nil {
			result, err = run(wanted)
		}
		if err != nil {
			write(map[string]any{"error": err.Error()})
		} else {
			write(map[string]any{"result": result})
		}
	}
}
