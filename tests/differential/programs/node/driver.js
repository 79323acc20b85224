'use strict';
// Steers the unchanged Node client ali-ons from a test. The protocol of lines is told in ../../program.py.

const path = require('path');
const readline = require('readline');

// The client is where `npm ci` put it.
const { Consumer, Producer, Message } = require(path.join(process.argv[2], 'node_modules', 'ali-ons'));

const logger = { debug() {}, info() {}, warn() {}, error: (...words) => console.error(...words) };
const asked = new Map();
const running = new Map();
let questions = 0;

const write = line => process.stdout.write(JSON.stringify(line) + '\n');

/** Ask the test, and wait until it answers. */
function ask(event, name, more) {
  const number = ++questions;
  return new Promise(resolve => {
    asked.set(number, resolve);
    write({ event, name, ask: number, ...more });
  });
}

const OPTIONS = {
  sendMsgTimeout: value => ({ sendMsgTimeout: value }),
  retryTimesWhenSendFailed: value => ({ retryTimesWhenSendFailed: value }),
  consumeFromWhere: value => ({ consumeFromWhere: value }),
  messageModel: value => ({ isBroadcast: value === 'BROADCASTING' }),
  maxReconsumeTimes: value => ({ maxReconsumeTimes: value }),
  accessKey: value => ({ accessKey: value }),
  secretKey: value => ({ secretKey: value }),
};

function options(request) {
  let all = { httpclient: {}, nameSrv: request.namesrv, instanceName: request.name, logger };
  for (const [ name, value ] of Object.entries(request.options || {})) {
    if (!OPTIONS[name]) throw new Error(`this client has no option ${name}`);
    all = { ...all, ...OPTIONS[name](value) };
  }
  return all;
}

/** Have a producer send to that queue: it has no way to name one, but asks its route which is next. */
function aim(producer, queue) {
  const info = producer._topicPublishInfoTable.get(queue.topic);
  const wanted = info.messageQueueList.findIndex(one => one.queueId === queue.queue_id);
  info.selectOneMessageQueue = () => info.messageQueueList[wanted];
}

const text = value => (value === undefined || value === null ? null : String(value));

function describe(message) {
  return {
    topic: message.topic, body: message.body.toString(), flag: message.flag, sys_flag: message.sysFlag,
    queue_id: message.queueId, queue_offset: Number(message.queueOffset), reconsume_times: message.reconsumeTimes,
    message_id: message.msgId, born_host: message.bornHost, store_host: message.storeHost, properties: message.properties,
    waited_ms: Number(message.storeTimestamp) - Number(message.bornTimestamp),
  };
}

const operations = {
  async producer(request) {
    const made = new Producer({ ...options(request), producerGroup: request.group });
    made.on('error', error => console.error(error));
    running.set(request.name, made);
    await made.ready();
  },

  async push(request) {
    const made = new Consumer({ ...options(request), consumerGroup: request.group });
    made.on('error', error => console.error(error));
    running.set(request.name, made);
    for (const [ topic, expression ] of Object.entries(request.topics)) {
      made.subscribe(topic, expression, async message => {
        const answer = await ask('consume', request.name, { messages: [ describe(message) ] });
        if (answer.throw) throw new Error(answer.throw);
        return answer.status === 'ok' ? undefined : Consumer.ACTION_RETRY;
      });
    }
    await made.ready();
  },

  async send(request) {
    const producer = running.get(request.name);
    const message = new Message(request.topic, request.tag, request.body.repeat(request.times || 1));
    if (request.keys) message.keys = request.keys.split(' ');
    if (request.delay_level) message.delayTimeLevel = request.delay_level;
    if (request.flag) message.flag = request.flag;
    Object.assign(message.properties, request.properties);
    if (request.queue) {
      await producer.tryToFindTopicPublishInfo(request.topic);
      aim(producer, request.queue);
    }
    const sent = await producer.send(message);
    return {
      status: sent.sendStatus, message_id: sent.msgId, queue_offset: Number(sent.queueOffset),
      queue: { topic: sent.messageQueue.topic, broker: sent.messageQueue.brokerName, queue_id: sent.messageQueue.queueId },
    };
  },

  async shutdown(request) {
    const made = running.get(request.name);
    running.delete(request.name);
    if (made) await made.close();
  },
};

process.on('unhandledRejection', error => console.error(error));
readline.createInterface({ input: process.stdin }).on('line', async line => {
  const request = JSON.parse(line);
  if (request.reply !== undefined) {
    asked.get(request.reply)(request.value);
    asked.delete(request.reply);
    return;
  }
  try {
    const result = await operations[request.op](request);
    write({ id: request.id, result: result === undefined ? null : result });
  } catch (error) {
    const name = typeof error.code === 'number' ? 'MQBrokerException' : error.name; // a refusal of the broker
    write({ id: request.id, error: { class: name, text: text(error.message), code: error.code } });
  }
}).on('close', () => process.exit(0));
