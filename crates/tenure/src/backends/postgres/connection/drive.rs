//! Who drives a connection: the thread that sends a statement writes it, the background reads.
//!
//! The client library hands a statement over a channel to what drives the connection, and wakes
//! it. In a task of the background, that would be a change of threads for every statement. Here the
//! sender drives the connection itself (see `support::driver`): so it need not wake the background.
//! While it sends, a wake-up by its own thread is only noted, and driving the connection follows.
//!
//! **A caller that stalls.** A statement is sent and awaited by the future of its caller, which may
//! not be polled for long. It holds nothing meanwhile that another statement needs: the response
//! is read by the background, and waits in the caller's channel. Behind a pooler it would hold the
//! connection until its transaction is over; there, statements run in tasks of the background. A
//! caller that is dropped hands its future to such a task.

use std::cell::Cell;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker, ready};

use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio_postgres::AsyncMessage;

use crate::backends::postgres::push::PushRouter;
use crate::support::driver::{Drive, SharedDriver};

/// What the client library gives to drive a connection.
type PollMessage = Box<
    dyn FnMut(&mut Context<'_>) -> Poll<Option<Result<AsyncMessage, tokio_postgres::Error>>> + Send,
>;

thread_local! {
    /// What this thread sends at the moment.
    static SENDING: Cell<SendState> = const { Cell::new(SendState::Nothing) };
}

/// What a thread sends. Connections are told apart by an address, which is never followed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SendState {
    Nothing,
    /// A statement to this connection.
    To(usize),
    /// A statement to this connection, which has to be driven.
    Sent(usize),
}

/// Restores what was there before, also after a panic.
struct SendScope {
    outer: SendState,
}

impl Drop for SendScope {
    fn drop(&mut self) {
        SENDING.set(self.outer);
    }
}

/// A connection that is driven.
pub(crate) struct Driven {
    driver: Arc<SharedDriver<MessageDriver>>,
    background: AbortHandle,
    runtime: Handle,
    /// Tells this connection from others.
    address: usize,
}

impl Driven {
    /// Starts to drive a connection, and to deliver its pushed messages. Must be called within a
    /// runtime.
    pub(crate) fn start<S, T>(
        mut connection: tokio_postgres::Connection<S, T>,
        push: Arc<PushRouter>,
        ending: watch::Sender<()>,
    ) -> Driven
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let quiet = Arc::new(StatementWaker::default());
        let driver = Arc::new(SharedDriver::new(MessageDriver {
            poll_message: Box::new(move |context| connection.poll_message(context)),
            waker: Waker::from(quiet.clone()),
            quiet: quiet.clone(),
            on_disconnect: OnDisconnect { push, _ending: ending },
        }));
        let address = quiet.address();
        let ends = EndWithBackground(driver.clone());
        let running = driver.clone();
        let background = tokio::spawn(async move {
            let _ends = ends;
            running.run().await;
        });
        let background = background.abort_handle();
        Driven { driver, background, runtime: Handle::current(), address }
    }

    /// Ends the connection now.
    pub(crate) fn close(&self) {
        self.background.abort();
        self.driver.end();
    }

    /// Runs a call of the client library on the thread that polls it, to its end.
    pub(crate) fn in_place<T: Send + 'static>(
        self: &Arc<Self>,
        call: impl Future<Output = T> + Send + 'static,
    ) -> InPlaceCall<T> {
        let mut call = Box::pin(call);
        let driven = self.clone();
        let call = std::future::poll_fn(move |context| driven.send(|| call.as_mut().poll(context)));
        InPlaceCall { call: Some(Box::pin(call)), runtime: self.runtime.clone() }
    }

    /// Runs a call of the client library in a task of the background.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.runtime.spawn(task));
    }

    /// Does something that may send a statement, and then drives the connection if it did.
    fn send<T>(&self, work: impl FnOnce() -> T) -> T {
        let scope = SendScope { outer: SENDING.replace(SendState::To(self.address)) };
        let output = work();
        let has_sent = SENDING.get() == SendState::Sent(self.address);
        drop(scope);
        if has_sent {
            self.driver.drive();
        }
        output
    }
}

/// A call that its caller polls. Dropped before its end, it is completed in the background.
pub(crate) struct InPlaceCall<T: Send + 'static> {
    /// `None` when it has ended.
    call: Option<BoxFuture<'static, T>>,
    runtime: Handle,
}

impl<T: Send + 'static> Future for InPlaceCall<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let this = &mut *self;
        let Some(call) = &mut this.call else { return Poll::Pending };
        let entered = this.runtime.enter();
        let output = ready!(call.as_mut().poll(context));
        drop(entered);
        this.call = None;
        Poll::Ready(output)
    }
}

impl<T: Send + 'static> Drop for InPlaceCall<T> {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            drop(self.runtime.spawn(async move { drop(call.await) }));
        }
    }
}

/// Drives the connection and delivers pushed messages.
struct MessageDriver {
    poll_message: PollMessage,
    quiet: Arc<StatementWaker>,
    /// Wakes `quiet`.
    waker: Waker,
    on_disconnect: OnDisconnect,
}

impl Drive for MessageDriver {
    fn poll_drive(&mut self, context: &mut Context<'_>) -> Poll<()> {
        // It is always the same waker, of the one driver.
        self.quiet.background.register(context.waker());
        let context = &mut Context::from_waker(&self.waker);
        loop {
            match ready!((self.poll_message)(context)) {
                Some(Ok(AsyncMessage::Notification(notification))) => {
                    self.on_disconnect.push.deliver(notification.payload());
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Poll::Ready(()),
            }
        }
    }
}

/// Wakes the background, unless the thread that wakes it is about to drive the connection itself.
#[derive(Default)]
struct StatementWaker {
    background: futures_util::task::AtomicWaker,
}

impl StatementWaker {
    fn address(self: &Arc<Self>) -> usize {
        Arc::as_ptr(self).addr()
    }
}

impl Wake for StatementWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let address = self.address();
        // Without the thread's variables, because the thread ends, nothing is being sent.
        let sending = SENDING.try_with(Cell::get).unwrap_or(SendState::Nothing);
        if sending == SendState::To(address) {
            SENDING.set(SendState::Sent(address));
        } else if sending != SendState::Sent(address) {
            self.background.wake();
        }
    }
}

/// Ends the connection with the task of the background, also when that ends with its runtime: then
/// no thread would read any more.
struct EndWithBackground(Arc<SharedDriver<MessageDriver>>);

impl Drop for EndWithBackground {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Dropped when the connection ends: pushed messages may be missed from now on.
struct OnDisconnect {
    push: Arc<PushRouter>,
    /// Dropping it wakes every [`Connection::until_closed`](super::Connection::until_closed).
    _ending: watch::Sender<()>,
}

impl Drop for OnDisconnect {
    fn drop(&mut self) {
        self.push.recheck_all();
    }
}
