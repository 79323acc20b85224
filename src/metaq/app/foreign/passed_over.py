"""Options of RocketMQ 4.9 that have no effect here, and why: a server that finds one set says so when it starts.

Those whose neglect would break a promise stop the start instead (`metaq.app.foreign.refused`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_BY_REASON: Final[Mapping[str, str]] = {
    "one event loop serves all requests, so there are no thread pools and no queues in front of them": """
        adminBrokerThreadPoolNums clientCallbackExecutorThreads clientManageThreadPoolNums clientManagerThreadPoolQueueCapacity
        clientWorkerThreads consumerManageThreadPoolNums consumerManagerThreadPoolQueueCapacity endTransactionPoolQueueCapacity
        endTransactionThreadPoolNums heartbeatThreadPoolNums heartbeatThreadPoolQueueCapacity processReplyMessageThreadPoolNums
        pullMessageThreadPoolNums pullThreadPoolQueueCapacity putMessageFutureThreadPoolNums putThreadPoolQueueCapacity
        queryMessageThreadPoolNums queryThreadPoolQueueCapacity replyThreadPoolQueueCapacity sendMessageThreadPoolNums
        sendThreadPoolQueueCapacity serverCallbackExecutorThreads serverSelectorThreads serverWorkerThreads
        useEpollNativeSelector serverPooledByteBufAllocatorEnable clientPooledByteBufAllocatorEnable
    """,
    "a broker that cannot keep up refuses sends (unflushedBytesMax), and delays clients that are above a quota (docs/limits.md)": """
        brokerFastFailureEnable waitTimeMillsInSendQueue waitTimeMillsInPullQueue waitTimeMillsInHeartbeatQueue
        waitTimeMillsInTransactionQueue osPageCacheBusyTimeOutMills
    """,
    "what one client may use is limited by unansweredBytesMax, heldPullsMax, peerBytesMax and quotas (docs/limits.md)": """
        serverAsyncSemaphoreValue serverOnewaySemaphoreValue clientAsyncSemaphoreValue clientOnewaySemaphoreValue
        writeBufferHighWaterMark writeBufferLowWaterMark
    """,
    "connections to other servers have fixed time-outs and buffers, stay open, and are opened again when they break": """
        channelNotActiveInterval clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout clientSocketRcvBufSize
        clientSocketSndBufSize connectTimeoutMillis
    """,
    "messages are written straight into the page cache, without a pool of buffers in between": """
        commitCommitLogLeastPages commitCommitLogThoroughInterval commitIntervalCommitLog fastFailIfNoBufferInStorePool
        transientStorePoolEnable transientStorePoolSize
    """,
    "each sync writes everything that is there (flushIntervalCommitLog, flushIntervalConsumeQueue)": """
        flushCommitLogLeastPages flushCommitLogThoroughInterval flushCommitLogTimed flushConsumeQueueLeastPages
        flushConsumeQueueThoroughInterval
    """,
    "log files are reserved whole, and their pages are always prepared in advance": """
        flushLeastPagesWhenWarmMapedFile warmMapedFileEnable
    """,
    "expired files are deleted by a thread for which no request waits, as soon as nobody reads them": """
        deleteCommitLogFilesInterval deleteConsumeQueueFilesInterval destroyMapedFileIntervalForcibly redeleteHangedFileInterval
    """,
    "filters are evaluated on the messages themselves, and consumequeue_ext is not written": """
        bitMapLengthConsumeQueueExt enableCalcFilterBitMap expectConsumerNumUseFilter mappedFileSizeConsumeQueueExt
        maxErrorRateOfBloomFilter
    """,
    "a single thread appends to the log, so there is no lock to choose or to watch": """
        debugLockEnable useReentrantLockWhenPutMessage
    """,
    "a pull is answered with the bytes of the log as they are": "transferMsgByHeap",
    "delayed messages are delivered in order, in short steps between other work": """
        enableScheduleAsyncDeliver scheduleAsyncDeliverMaxPendingLimit scheduleAsyncDeliverMaxResendNum2Blocked
    """,
    "statistics are always counted, and deleted with their topic or group": """
        autoDeleteUnusedStats diskFallRecorded enableDetailStat enableScheduleMessageStats
    """,
    "old messages are read without delaying other requests, so a slow group is not switched off": """
        consumerFallbehindThreshold disableConsumeIfConsumerReadSlowly
    """,
    "a registration is small: it has what has changed, and everything only for a name server that was away": """
        compressedRegister forceRegister
    """,
    "the index is complete after every start, as with messageIndexSafe=true": "messageIndexSafe",
    "a slave never corrects the offset of a consumer, since it may lack messages that its master has": "offsetCheckInSlave",
    "each server process has its own log": "isolateLogEnable",
    "light message queues (LMQ) are not supported": "maxLmqConsumeQueueNum",
    "DLedger is not supported": """
        dLegerGroup dLegerPeers dLegerSelfId isEnableBatchPush preferredLeaderId storePathDLedgerCommitLog
    """,
    "the commit log has a single folder": "rocketmq.broker.multiPathSplitter",
    "nothing but accounts is read from an installation folder, and that is named by the environment variable ROCKETMQ_HOME": "rocketmqHome",
    "only the options that docs/configuration.md calls hot can be changed by requests": "configBlackList",
    "options that were changed by requests are saved in metaqOptions.json beside the KV configuration": "configStorePath",
    "it is used only with clusterTest, which is not supported": "productEnvName",
    "no figures are kept for billing": """
        commercialBaseCount commercialBigCount commercialEnable commercialTimerCount commercialTransCount
    """,
    "RocketMQ itself does not read it either": """
        flushConsumerOffsetHistoryInterval highSpeedMode maxDelayTime putMsgIndexHightWater
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
