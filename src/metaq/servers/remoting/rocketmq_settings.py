"""Defaults of the settings of a RocketMQ 4.9.7 broker that have no counterpart here.

Administrators' tools read them from every broker (26): its role, its thread pools, its limits. For settings that we
have, `metaq.servers.remoting.reports` answers the true value.
"""

from __future__ import annotations

from typing import Final

_TABLE: Final = """
# BrokerConfig
adminBrokerThreadPoolNums=16
autoDeleteUnusedStats=false
brokerFastFailureEnable=true
clientManageThreadPoolNums=32
clientManagerThreadPoolQueueCapacity=1000000
commercialBaseCount=1
commercialBigCount=1
commercialEnable=true
commercialTimerCount=1
commercialTransCount=1
compressedRegister=false
consumerFallbehindThreshold=17179869184
consumerManageThreadPoolNums=32
consumerManagerThreadPoolQueueCapacity=1000000
disableConsumeIfConsumerReadSlowly=false
enableCalcFilterBitMap=false
enableDetailStat=true
endTransactionPoolQueueCapacity=100000
endTransactionThreadPoolNums=12
expectConsumerNumUseFilter=32
flushConsumerOffsetHistoryInterval=60000
forceRegister=true
heartbeatThreadPoolNums=2
heartbeatThreadPoolQueueCapacity=50000
highSpeedMode=false
isolateLogEnable=false
maxDelayTime=40
maxErrorRateOfBloomFilter=20
messageStorePlugIn=
processReplyMessageThreadPoolNums=20
pullMessageThreadPoolNums=20
pullThreadPoolQueueCapacity=100000
putMessageFutureThreadPoolNums=2
putThreadPoolQueueCapacity=10000
queryMessageThreadPoolNums=10
queryThreadPoolQueueCapacity=20000
replyThreadPoolQueueCapacity=10000
sendMessageThreadPoolNums=2
sendThreadPoolQueueCapacity=10000
startAcceptSendRequestTimeStamp=0
transferMsgByHeap=true
waitTimeMillsInHeartbeatQueue=31000
waitTimeMillsInPullQueue=5000
waitTimeMillsInSendQueue=200
waitTimeMillsInTransactionQueue=3000
# NettyServerConfig
serverAsyncSemaphoreValue=64
serverCallbackExecutorThreads=0
serverOnewaySemaphoreValue=256
serverPooledByteBufAllocatorEnable=true
serverSelectorThreads=3
serverWorkerThreads=8
useEpollNativeSelector=false
writeBufferHighWaterMark=0
writeBufferLowWaterMark=0
# NettyClientConfig
channelNotActiveInterval=60000
clientAsyncSemaphoreValue=65535
clientChannelMaxIdleTimeSeconds=120
clientCloseSocketIfTimeout=true
clientOnewaySemaphoreValue=65535
clientPooledByteBufAllocatorEnable=false
clientSocketRcvBufSize=0
clientSocketSndBufSize=0
clientWorkerThreads=4
connectTimeoutMillis=3000
useTLS=false
# MessageStoreConfig
bitMapLengthConsumeQueueExt=64
commitCommitLogLeastPages=4
commitCommitLogThoroughInterval=200
commitIntervalCommitLog=200
debugLockEnable=false
deleteCommitLogFilesInterval=100
deleteConsumeQueueFilesInterval=100
destroyMapedFileIntervalForcibly=120000
diskFallRecorded=true
duplicationEnable=false
enableConsumeQueueExt=false
enableDLegerCommitLog=false
enableLmq=false
enableMultiDispatch=false
enableScheduleAsyncDeliver=false
enableScheduleMessageStats=true
fastFailIfNoBufferInStorePool=false
flushCommitLogLeastPages=4
flushCommitLogThoroughInterval=10000
flushCommitLogTimed=true
flushConsumeQueueLeastPages=2
flushConsumeQueueThoroughInterval=60000
flushLeastPagesWhenWarmMapedFile=4096
isEnableBatchPush=false
mappedFileSizeConsumeQueueExt=50331648
maxLmqConsumeQueueNum=20000
messageIndexSafe=false
offsetCheckInSlave=false
osPageCacheBusyTimeOutMills=1000
putMsgIndexHightWater=600000
redeleteHangedFileInterval=120000
scheduleAsyncDeliverMaxPendingLimit=2000
scheduleAsyncDeliverMaxResendNum2Blocked=3
transientStorePoolEnable=false
transientStorePoolSize=5
useReentrantLockWhenPutMessage=true
warmMapedFileEnable=false
"""
"""As RocketMQ's own classes give them when nothing is set; those that are null there are not told."""

DEFAULTS: Final[dict[str, str]] = dict(
    line.split("=", 1) for line in _TABLE.splitlines() if line and not line.startswith("#")
)
