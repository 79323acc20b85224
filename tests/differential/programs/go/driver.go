// Steers the unchanged RocketMQ Go client from a test. The protocol of lines is told in ../../program.py.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

type dict map[string]any

type queue struct {
	Topic   string `json:"topic"`
	Broker  string `json:"broker"`
	QueueID int    `json:"queue_id"`
}

type message struct {
	Topic, Body, Tag, Keys, Key string
	Times, Flag                 int
	DelayLevel                  int `json:"delay_level"`
	Properties                  map[string]string
	Queue                       *queue
}

type request struct {
	message
	ID           int
	Reply        int
	Value        any
	Op           string
	Name         string
	Group        string
	Namesrv      string
	Mode         string
	Messages     []message
	Topics       map[string]string
	Options      map[string]any
	Orderly      bool
	Transactions bool
	Strategy     *struct{ Kind string }
	TimeoutMs    int `json:"timeout_ms"`
	Async        bool
}

var (
	output       sync.Mutex
	lock         sync.Mutex
	questions    int
	asked        = map[int]chan any{}
	producers    = map[string]rocketmq.Producer{}
	transactions = map[string]rocketmq.TransactionProducer{}
	consumers    = map[string]rocketmq.PushConsumer{}
)

func write(line dict) {
	text, _ := json.Marshal(line)
	output.Lock()
	defer output.Unlock()
	fmt.Println(string(text))
}

// ask asks the test, and waits until it answers.
func ask(event, name string, more dict) any {
	answer := make(chan any, 1)
	lock.Lock()
	questions++
	number := questions
	asked[number] = answer
	lock.Unlock()
	more["event"], more["name"], more["ask"] = event, name, number
	write(more)
	return <-answer
}

func run(r request) (any, error) {
	switch r.Op {
	case "producer":
		return nil, startProducer(r)
	case "push":
		return nil, startPush(r)
	case "send":
		return send(r)
	case "send_in_transaction":
		sent, err := transactions[r.Name].SendMessageInTransaction(context.Background(), made(r.message))
		if err != nil {
			return nil, err
		}
		line := receipt(sent.SendResult)
		line["local_state"] = sent.State
		return line, nil
	case "request":
		return awaitReply(r)
	case "suspend":
		consumers[r.Name].Suspend()
		return nil, nil
	case "resume":
		consumers[r.Name].Resume()
		return nil, nil
	case "shutdown":
		return nil, shutdown(r.Name)
	}
	return nil, fmt.Errorf("unknown op %s", r.Op)
}

func shutdown(name string) error {
	lock.Lock()
	sender, transactional, receiver := producers[name], transactions[name], consumers[name]
	delete(producers, name)
	delete(transactions, name)
	delete(consumers, name)
	lock.Unlock()
	if receiver != nil {
		return receiver.Shutdown()
	}
	if transactional != nil {
		return transactional.Shutdown()
	}
	if sender != nil {
		return sender.Shutdown()
	}
	return nil
}

// chosen sends to the queue that a message names, and else in rotation.
type chosen struct{ rotation producer.QueueSelector }

func (c chosen) Select(m *primitive.Message, queues []*primitive.MessageQueue, last string) *primitive.MessageQueue {
	if m.Queue == nil {
		return c.rotation.Select(m, queues, last)
	}
	for _, one := range queues {
		if one.QueueId == m.Queue.QueueId && one.BrokerName == m.Queue.BrokerName {
			return one
		}
	}
	return nil
}

type listener struct{ name string }

var states = map[any]primitive.LocalTransactionState{
	"COMMIT_MESSAGE": primitive.CommitMessageState, "ROLLBACK_MESSAGE": primitive.RollbackMessageState,
	"UNKNOW": primitive.UnknowState,
}

func (l listener) ExecuteLocalTransaction(m *primitive.Message) primitive.LocalTransactionState {
	return states[ask("execute", l.name, dict{"topic": m.Topic, "body": string(m.Body)})]
}

func (l listener) CheckLocalTransaction(m *primitive.MessageExt) primitive.LocalTransactionState {
	return states[ask("check", l.name, describe(m))]
}

func startProducer(r request) error {
	options := []producer.Option{
		producer.WithNameServer([]string{r.Namesrv}), producer.WithGroupName(r.Group), producer.WithInstanceName(r.Name),
		producer.WithQueueSelector(chosen{producer.NewRoundRobinQueueSelector()}),
	}
	for option, value := range r.Options {
		switch option {
		case "sendMsgTimeout":
			options = append(options, producer.WithSendMsgTimeout(time.Duration(value.(float64))*time.Millisecond))
		case "retryTimesWhenSendFailed":
			options = append(options, producer.WithRetry(int(value.(float64))))
		default:
			return fmt.Errorf("this client has no option %s", option)
		}
	}
	if r.Transactions {
		started, err := rocketmq.NewTransactionProducer(listener{r.Name}, options...)
		if err != nil {
			return err
		}
		lock.Lock()
		transactions[r.Name] = started
		lock.Unlock()
		return started.Start()
	}
	started, err := rocketmq.NewProducer(options...)
	if err != nil {
		return err
	}
	lock.Lock()
	producers[r.Name] = started
	lock.Unlock()
	return started.Start()
}

func startPush(r request) error {
	options := []consumer.Option{
		consumer.WithNameServer([]string{r.Namesrv}), consumer.WithGroupName(r.Group), consumer.WithInstance(r.Name),
		consumer.WithConsumerOrder(r.Orderly),
	}
	for option, value := range r.Options {
		switch option {
		case "consumeFromWhere":
			where := map[any]consumer.ConsumeFromWhere{
				"CONSUME_FROM_FIRST_OFFSET": consumer.ConsumeFromFirstOffset,
				"CONSUME_FROM_LAST_OFFSET":  consumer.ConsumeFromLastOffset,
			}
			options = append(options, consumer.WithConsumeFromWhere(where[value]))
		case "messageModel":
			options = append(options, consumer.WithConsumerModel(consumer.BroadCasting))
		case "maxReconsumeTimes":
			options = append(options, consumer.WithMaxReconsumeTimes(int32(value.(float64))))
		case "consumeMessageBatchMaxSize":
			options = append(options, consumer.WithConsumeMessageBatchMaxSize(int(value.(float64))))
		case "suspendCurrentQueueTimeMillis":
			pause := time.Duration(value.(float64)) * time.Millisecond
			options = append(options, consumer.WithSuspendCurrentQueueTimeMillis(pause))
		default:
			return fmt.Errorf("this client has no option %s", option)
		}
	}
	if r.Strategy != nil {
		strategies := map[string]consumer.AllocateStrategy{
			"circle": consumer.AllocateByAveragelyCircle, "hash": consumer.AllocateByConsistentHash(10),
		}
		options = append(options, consumer.WithStrategy(strategies[r.Strategy.Kind]))
	}
	started, err := rocketmq.NewPushConsumer(options...)
	if err != nil {
		return err
	}
	for topic, tags := range r.Topics {
		selector := consumer.MessageSelector{Type: consumer.TAG, Expression: tags}
		if condition, found := strings.CutPrefix(tags, "SQL "); found {
			selector = consumer.MessageSelector{Type: consumer.SQL92, Expression: condition}
		}
		if err := started.Subscribe(topic, selector, handler(r)); err != nil {
			return err
		}
	}
	lock.Lock()
	consumers[r.Name] = started
	lock.Unlock()
	return started.Start()
}

func handler(r request) func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
	return func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		described := []dict{}
		for _, one := range messages {
			described = append(described, describe(one))
		}
		answer, _ := ask("consume", r.Name, dict{"messages": described}).(map[string]any)
		if level, found := answer["delayLevelWhenNextConsume"]; found {
			if settings, found := primitive.GetConcurrentlyCtx(ctx); found {
				settings.DelayLevelWhenNextConsume = int(level.(float64))
			}
		}
		if text, found := answer["throw"]; found {
			return consumer.ConsumeRetryLater, errors.New(text.(string))
		}
		if text, found := answer["reply"]; found {
			for _, one := range messages {
				write(replied(r.Name, answer["by"].(string), one, text.(string)))
			}
		}
		switch answer["status"] {
		case "ok":
			return consumer.ConsumeSuccess, nil
		case "commit":
			return consumer.Commit, nil
		case "rollback":
			return consumer.Rollback, nil
		}
		if r.Orderly {
			return consumer.SuspendCurrentQueueAMoment, nil
		}
		return consumer.ConsumeRetryLater, nil
	}
}

// replied replies to a request by a producer of ours, and says what came of it.
func replied(name, by string, request *primitive.MessageExt, text string) dict {
	line := dict{"event": "replied", "name": name}
	reply, err := consumer.CreateReplyMessage(request, []byte(text))
	if err == nil {
		reply.Body = []byte(text) // which CreateReplyMessage takes for properties
		var sent *primitive.SendResult
		if sent, err = producers[by].SendSync(context.Background(), reply); err == nil {
			line["receipt"] = receipt(sent)
			return line
		}
	}
	line["threw"] = failure(err)
	return line
}

// awaitReply asks, and waits for the reply; by callback if `Async` says so.
func awaitReply(r request) (any, error) {
	wait := time.Duration(r.TimeoutMs) * time.Millisecond
	if !r.Async {
		reply, err := producers[r.Name].Request(context.Background(), wait, made(r.message))
		if err != nil {
			return nil, err
		}
		return dict{"topic": reply.Topic, "body": string(reply.Body), "properties": reply.GetProperties()}, nil
	}
	type outcome struct {
		reply *primitive.Message
		err   error
	}
	outcomes := make(chan outcome, 1)
	err := producers[r.Name].RequestAsync(context.Background(), wait,
		func(_ context.Context, reply *primitive.Message, err error) { outcomes <- outcome{reply, err} }, made(r.message))
	if err != nil {
		return nil, err
	}
	one := <-outcomes
	if one.err != nil {
		return nil, one.err
	}
	return dict{"topic": one.reply.Topic, "body": string(one.reply.Body), "properties": one.reply.GetProperties()}, nil
}

func made(m message) *primitive.Message {
	body := ""
	for i := 0; i < max(1, m.Times); i++ {
		body += m.Body
	}
	one := primitive.NewMessage(m.Topic, []byte(body))
	one.Flag = int32(m.Flag)
	if m.Tag != "" {
		one.WithTag(m.Tag)
	}
	if m.Keys != "" {
		one.WithKeys([]string{m.Keys})
	}
	if m.DelayLevel != 0 {
		one.WithDelayTimeLevel(m.DelayLevel)
	}
	for name, value := range m.Properties {
		one.WithProperty(name, value)
	}
	if m.Queue != nil {
		one.Queue = &primitive.MessageQueue{Topic: m.Queue.Topic, BrokerName: m.Queue.Broker, QueueId: m.Queue.QueueID}
	}
	return one
}

func send(r request) (any, error) {
	sender, ctx := producers[r.Name], context.Background()
	switch r.Mode {
	case "oneway":
		return nil, sender.SendOneWay(ctx, made(r.message))
	case "async":
		type outcome struct {
			sent *primitive.SendResult
			err  error
		}
		outcomes := make(chan outcome, 1)
		err := sender.SendAsync(ctx, func(_ context.Context, sent *primitive.SendResult, err error) {
			outcomes <- outcome{sent, err}
		}, made(r.message))
		if err != nil {
			return nil, err
		}
		one := <-outcomes
		if one.err != nil {
			return nil, one.err
		}
		return receipt(one.sent), nil
	}
	messages := []*primitive.Message{}
	if r.Mode == "batch" {
		for _, one := range r.Messages {
			messages = append(messages, made(one))
		}
		messages[0].Queue = made(r.message).Queue
	} else {
		messages = append(messages, made(r.message))
	}
	sent, err := sender.SendSync(ctx, messages...)
	if err != nil {
		return nil, err
	}
	return receipt(sent), nil
}

func receipt(sent *primitive.SendResult) dict {
	line := dict{
		"status": sent.Status, "message_id": sent.MsgID, "offset_message_id": sent.OffsetMsgID,
		"queue_offset": sent.QueueOffset, "region": sent.RegionID, "trace": sent.TraceOn, "transaction_id": sent.TransactionID,
	}
	if sent.MessageQueue != nil {
		line["queue"] = queue{sent.MessageQueue.Topic, sent.MessageQueue.BrokerName, sent.MessageQueue.QueueId}
	}
	return line
}

func describe(m *primitive.MessageExt) dict {
	return dict{
		"topic": m.Topic, "body": string(m.Body), "flag": m.Flag, "sys_flag": m.SysFlag, "queue_id": m.Queue.QueueId,
		"queue_offset": m.QueueOffset, "reconsume_times": m.ReconsumeTimes, "message_id": m.MsgId,
		"is_prepared": m.PreparedTransactionOffset > 0, "store_host": m.StoreHost, "properties": m.GetProperties(),
		"born_before_store": m.BornTimestamp <= m.StoreTimestamp, "waited_ms": m.StoreTimestamp - m.BornTimestamp,
	}
}

func failure(err error) dict {
	line := dict{"class": fmt.Sprintf("%T", err), "text": err.Error()}
	var refused primitive.MQBrokerErr
	if errors.As(err, &refused) {
		line = dict{"class": "MQBrokerException", "code": refused.ResponseCode, "text": refused.ErrorMessage}
	}
	return line
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var wanted request
		if err := json.Unmarshal(lines.Bytes(), &wanted); err != nil {
			panic(err)
		}
		if wanted.Reply != 0 {
			lock.Lock()
			answer := asked[wanted.Reply]
			delete(asked, wanted.Reply)
			lock.Unlock()
			answer <- wanted.Value
			continue
		}
		go func() {
			result, err := run(wanted)
			if err != nil {
				write(dict{"id": wanted.ID, "error": failure(err)})
			} else {
				write(dict{"id": wanted.ID, "result": result})
			}
		}()
	}
}
