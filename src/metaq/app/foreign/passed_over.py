"""Options of RocketMQ 4.9 that have no effect here, and why: a server that finds one set says so when it starts.

Those whose neglect would break a promise stop the start instead (`metaq.app.foreign.refused`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_BY_REASON: Final[Mapping[str, str]] = {
    "one event loop serves all requests, so there are no pools of threads with queues in front": """
        adminBrokerThreadPoolNums clientCallbackExecutorThreads clientManageThreadPoolNums clientManagerThreadPoolQueueCapacity
        clientWorkerThreads consumerManageThreadPoolNums consumerManagerThreadPoolQueueCapacity endTransactionPoolQueueCapacity
        endTransactionThreadPoolNums heartbeatThreadPoolNums heartbeatThreadPoolQueueCapacity processReplyMessageThreadPoolNums
        pullMessageThreadPoolNums pullThreadPoolQueueCapacity putMessageFutureThreadPoolNums putThreadPoolQueueCapacity
        queryMessageThreadPoolNums queryThreadPoolQueueCapacity replyThreadPoolQueueCapacity sendMessageThreadPoolNums
        sendThreadPoolQueueCapacity serverCallbackExecutorThreads serverSelectorThreads serverWorkerThreads
        useEpollNativeSelector serverPooledByteBufAllocatorEnable clientPooledByteBufAllocatorEnable
    """,
    "a broker that cannot keep up refuses sends by unflushedBytesMax, and makes who is above a quota wait (docs/limits.md)": """
        brokerFastFailureEnable waitTimeMillsInSendQueue waitTimeMillsInPullQueue waitTimeMillsInHeartbeatQueue
        waitTimeMillsInTransactionQueue osPageCacheBusyTimeOutMills
    """,
    "what one peer may take is limited by unansweredBytesMax, heldPullsMax, peerBytesMax and quotas (docs/limits.md)": """
        serverAsyncSemaphoreValue serverOnewaySemaphoreValue clientAsyncSemaphoreValue clientOnewaySemaphoreValue
        writeBufferHighWaterMark writeBufferLowWaterMark
    """,
    "connections to other servers have time-outs and buffers of their own, are kept, and are made anew when they break": """
        channelNotActiveInterval clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout clientSocketRcvBufSize
        clientSocketSndBufSize connectTimeoutMillis
    """,
    "messages go straight into the page cache, so there is no pool of buffers in front of it": """
        commitCommitLogLeastPages commitCommitLogThoroughInterval commitIntervalCommitLog fastFailIfNoBufferInStorePool
        transientStorePoolEnable transientStorePoolSize
    """,
    "each flush takes all that is there (flushIntervalCommitLog, flushIntervalConsumeQueue)": """
        flushCommitLogLeastPages flushCommitLogThoroughInterval flushCommitLogTimed flushConsumeQueueLeastPages
        flushConsumeQueueThoroughInterval
    """,
    "log files are reserved whole and their pages made ready ahead, always": """
        flushLeastPagesWhenWarmMapedFile warmMapedFileEnable
    """,
    "a thread that no request waits for deletes expired files, once nobody reads them": """
        deleteCommitLogFilesInterval deleteConsumeQueueFilesInterval destroyMapedFileIntervalForcibly redeleteHangedFileInterval
    """,
    "filters are evaluated on messages, and consumequeue_ext is not written": """
        bitMapLengthConsumeQueueExt enableCalcFilterBitMap expectConsumerNumUseFilter mappedFileSizeConsumeQueueExt
        maxErrorRateOfBloomFilter
    """,
    "one thread appends to the log, so there is no lock to choose or to watch": """
        debugLockEnable useReentrantLockWhenPutMessage
    """,
    "a pull is answered with bytes of the log as they lie there": "transferMsgByHeap",
    "delayed messages are delivered in order, in slices beside all other work": """
        enableScheduleAsyncDeliver scheduleAsyncDeliverMaxPendingLimit scheduleAsyncDeliverMaxResendNum2Blocked
    """,
    "statistics are always counted, and go with their topic or group": """
        autoDeleteUnusedStats diskFallRecorded enableDetailStat enableScheduleMessageStats
    """,
    "old messages are read beside all other work, so a slow group holds nobody up and is not switched off": """
        consumerFallbehindThreshold disableConsumeIfConsumerReadSlowly
    """,
    "a registration has what has changed, or everything for a name server that was away, and is small": """
        compressedRegister forceRegister
    """,
    "the index is whole after every start, as with messageIndexSafe=true": "messageIndexSafe",
    "a slave never moves a consumer within a queue, as it may lack what its master has": "offsetCheckInSlave",
    "each process has a log of its own": "isolateLogEnable",
    "there are no light queues in this version": "maxLmqConsumeQueueNum",
    "there is no DLedger in this version": """
        dLegerGroup dLegerPeers dLegerSelfId preferredLeaderId storePathDLedgerCommitLog
    """,
    "the log has one folder": "rocketmq.broker.multiPathSplitter",
    "nothing is read from an installation folder but the accounts, by the variable ROCKETMQ_HOME": "rocketmqHome",
    "only options that docs/configuration.md calls hot are changed over the wire": "configBlackList",
    "options that are changed over the wire are kept in metaqOptions.json beside the KV configuration": "configStorePath",
    "only clusterTest needs it": "productEnvName",
    "no figures are kept for the bills of a cloud": """
        commercialBaseCount commercialBigCount commercialEnable commercialTimerCount commercialTransCount
    """,
    "RocketMQ reads it nowhere either": """
        flushConsumerOffsetHistoryInterval highSpeedMode isEnableBatchPush maxDelayTime putMsgIndexHightWater
    """,
}

REASONS: Final[Mapping[str, str]] = {key: reason for reason, keys in _BY_REASON.items() for key in keys.split()}
"""Key → why it has no effect here."""


def notices(keys: list[str], where: str) -> list[str]:
    """Return a sentence for each reason that these keys, found in `where`, have no effect."""
    by_reason: dict[str, list[str]] = {}
    for key in keys:
        by_reason.setdefault(REASONS[key], []).append(key)
    return [
        f"{where}: {', '.join(sorted(found))} {'has' if len(found) == 1 else 'have'} no effect here: {reason}"
        for reason, found in by_reason.items()
    ]
