//! Who drives a connection: the thread that sends a statement writes it, the background reads.
//!
//! The client library hands a statement over a channel to what drives the connection, and wakes
//! it. In a task of the background, that would be a change of threads for every statement. Here the
//! sender drives the connection itself (see `support::driver`), and the background is not woken by
//! that (see `support::quiet_waker`). If the caller is alone on the connection, and the server
//! responds soon, its thread also waits for the response, for some microseconds, and reads it (see
//! `support::short_wait`).
//!
//! **A caller that stalls.** A statement is sent and awaited by the future of its caller, which may
//! not be polled for long. It holds nothing meanwhile that another statement needs: the response
//! is read by the background, and waits in the caller's channel. Behind a pooler it would hold the
//! connection until its transaction is over; there, statements run in tasks of the background. A
//! caller that is dropped hands its future to such a task.

use std::pin::Pin;
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::thread::ThreadId;
use std::time::Instant;

use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio_postgres::AsyncMessage;

use crate::backends::postgres::push::PushRouter;
use crate::support::driver::{Drive, SharedDriver};
use crate::support::quiet_waker::QuietWaker;
use crate::support::short_wait::{self, ShortWait};
use crate::support::socket::SocketHandle;

/// What the client library gives to drive a connection.
type PollMessage = Box<
    dyn FnMut(&mut Context<'_>) -> Poll<Option<Result<AsyncMessage, tokio_postgres::Error>>> + Send,
>;

/// A connection that is driven.
pub(crate) struct Driven {
    driver: Arc<SharedDriver<MessageDriver>>,
    waker: Arc<QuietWaker>,
    background: AbortHandle,
    runtime: Handle,
    /// The thread that reads in the background, which must not wait for a response. Set by it: the
    /// caller of a dial may be another one.
    thread: Arc<OnceLock<ThreadId>>,
    /// The socket belongs to the driver alone: it is closed when the connection ends, which is what
    /// ends the session at the server, also if this value lives on.
    socket: Weak<SocketHandle>,
    short_wait: ShortWait,
}

impl Driven {
    /// Starts to drive a connection, and to deliver its pushed messages. Must be called within a
    /// runtime.
    pub(crate) fn start<S, T>(
        mut connection: tokio_postgres::Connection<S, T>,
        socket: Weak<SocketHandle>,
        push: Arc<PushRouter>,
        ending: watch::Sender<()>,
    ) -> Driven
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let waker = Arc::<QuietWaker>::default();
        let driver = Arc::new(SharedDriver::new(MessageDriver {
            poll_message: Box::new(move |context| connection.poll_message(context)),
            as_waker: Waker::from(waker.clone()),
            waker: waker.clone(),
            on_disconnect: OnDisconnect { push, _ending: ending },
        }));
        let ends = EndWithBackground(driver.clone());
        let running = driver.clone();
        let thread = Arc::<OnceLock<ThreadId>>::default();
        let of_background = thread.clone();
        let background = tokio::spawn(async move {
            let _ends = ends;
            of_background.get_or_init(|| std::thread::current().id());
            running.run().await;
        });
        Driven {
            driver,
            waker,
            background: background.abort_handle(),
            runtime: Handle::current(),
            thread,
            socket,
            short_wait: ShortWait::default(),
        }
    }

    /// Ends the connection now.
    pub(crate) fn close(&self) {
        self.background.abort();
        self.driver.end();
    }

    /// Runs a call of the client library on the thread that polls it, to its end. If no other
    /// statement of the connection is under way (`is_alone`), the thread may wait for the response
    /// itself, for a moment.
    pub(crate) fn in_place<T: Send + 'static>(
        self: &Arc<Self>,
        is_alone: bool,
        call: impl Future<Output = T> + Send + 'static,
    ) -> InPlaceCall<T> {
        let mut call = Box::pin(call);
        let driven = self.clone();
        let mut wait = Wait::of(is_alone);
        let call = std::future::poll_fn(move |context| {
            if wait == Wait::Unknown {
                wait = driven.first_poll();
                if wait == Wait::OnThisThread
                    && let Poll::Ready(output) = driven.send_and_wait(&mut call)
                {
                    return Poll::Ready(output);
                }
            }
            let polled = driven.waker.drive_after(&driven.driver, || call.as_mut().poll(context));
            if let (Poll::Ready(_), Wait::AsUsual(sent)) = (&polled, wait) {
                driven.short_wait.on_response(sent.elapsed());
            }
            polled
        });
        if !is_alone {
            self.short_wait.on_company();
        }
        InPlaceCall { call: Some(Box::pin(call)), runtime: self.runtime.clone() }
    }

    /// How a caller that is alone awaits its response.
    fn first_poll(&self) -> Wait {
        let here = std::thread::current().id();
        if self.thread.get().is_none_or(|thread| *thread == here) {
            Wait::NotCounted
        } else if self.short_wait.is_allowed() {
            Wait::OnThisThread
        } else {
            Wait::AsUsual(Instant::now())
        }
    }

    /// Sends the statement of a call, and waits for the response on this thread for a moment.
    /// Meanwhile the background is not woken by what arrives. The caller polls the call again if
    /// this is pending; only then is its waker registered.
    fn send_and_wait<T>(&self, call: &mut Pin<Box<impl Future<Output = T>>>) -> Poll<T> {
        let Some(socket) = self.socket.upgrade() else { return Poll::Pending };
        let mut context = Context::from_waker(Waker::noop());
        let held_back = socket.hold_back();
        let sent = self.waker.drive_after(&self.driver, || call.as_mut().poll(&mut context));
        if sent.is_ready() {
            return sent;
        }
        let readable = held_back.wait_readable(short_wait::LIMIT);
        if readable {
            self.driver.drive();
        }
        self.short_wait.on_wait(!readable);
        Poll::Pending
    }

    /// Runs a call of the client library in a task of the background.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.runtime.spawn(task));
    }
}

/// How the response of a call is awaited.
#[derive(Clone, Copy, PartialEq)]
enum Wait {
    /// Decided by the first poll: that is when the statement is sent.
    Unknown,
    OnThisThread,
    /// By the background, since this moment.
    AsUsual(Instant),
    /// By the background, without telling anything about the server: others wait as well.
    NotCounted,
}

impl Wait {
    fn of(is_alone: bool) -> Wait {
        if is_alone { Wait::Unknown } else { Wait::NotCounted }
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
    waker: Arc<QuietWaker>,
    /// `waker`, in the form that the client library takes.
    as_waker: Waker,
    on_disconnect: OnDisconnect,
}

impl Drive for MessageDriver {
    fn poll_drive(&mut self, context: &mut Context<'_>) -> Poll<()> {
        // It is always the same waker, of the one driver.
        self.waker.register(context.waker());
        let context = &mut Context::from_waker(&self.as_waker);
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
