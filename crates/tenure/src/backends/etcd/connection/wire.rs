//! One HTTP/2 connection to a member, which any thread may drive.
//!
//! A request is given to h2 as a whole (head, body, end) before the connection is driven, and the
//! thread that sends it drives: so each request is one write, on the caller's own thread. Responses
//! are read by the background task.
//!
//! h2 wakes the task of the connection with everything that its users do; the background is not
//! woken by that (see `support::quiet_waker`).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, Connection, ResponseFuture, SendRequest};
use h2::{Ping, PingPong, SendStream};
use hyper::Request;

use super::status::Status;
use crate::support::driver::{Drive, SharedDriver};
use crate::support::quiet_waker::QuietWaker;
use crate::support::tls::Stream;

/// HTTP/2 pings notice a frozen server while no request is under way that would. Servers close
/// connections that ping more often than every 5 s, or without a request under way.
const PING_INTERVAL: Duration = Duration::from_secs(6);
const PING_LIMIT: Duration = Duration::from_secs(3);
/// How much of one response, and of all, the server may send before it has to wait for the client:
/// listings are long.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;

/// An open connection. It is closed when the last user has dropped it.
pub(super) struct H2Wire {
    requests: SendRequest<Bytes>,
    driver: Arc<SharedDriver<H2Driver>>,
    waker: Arc<QuietWaker>,
    /// How many requests are under way.
    streams: Arc<AtomicUsize>,
}

impl H2Wire {
    /// Begins to speak HTTP/2. Must be called within a runtime.
    pub(super) async fn start(stream: Box<dyn Stream>) -> Result<H2Wire, h2::Error> {
        let (requests, mut connection) = Builder::new()
            .enable_push(false)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .handshake(stream)
            .await?;
        let pings = connection.ping_pong();
        let waker = Arc::<QuietWaker>::default();
        let driver = H2Driver { connection, waker: waker.clone(), as_waker: waker.clone().into() };
        let driver = Arc::new(SharedDriver::new(driver));
        let streams = Arc::<AtomicUsize>::default();
        tokio::spawn(run(driver.clone(), pings, streams.clone()));
        Ok(H2Wire { requests, driver, waker, streams })
    }

    pub(super) fn has_ended(&self) -> bool {
        self.driver.has_ended()
    }

    /// Sends a request: with its whole body, or as a stream if there is none. After it,
    /// [`H2Wire::end_stream`] has to be called.
    pub(super) fn send(
        &self,
        head: Request<()>,
        body: Option<Bytes>,
    ) -> Result<(ResponseFuture, SendStream<Bytes>), Status> {
        let sent = self.quietly(|| {
            let (response, mut stream) = self.requests.clone().send_request(head, false)?;
            if let Some(body) = body {
                stream.send_data(body, true)?;
            }
            Ok((response, stream))
        });
        let sent = sent.map_err(broken)?;
        self.streams.fetch_add(1, Ordering::Relaxed);
        Ok(sent)
    }

    /// Does something to the connection, and drives it. The background is not woken by that.
    pub(super) fn quietly<T>(&self, action: impl FnOnce() -> T) -> T {
        self.waker.drive_after(&self.driver, action)
    }

    /// A stream that was begun by [`H2Wire::send`] is over.
    pub(super) fn end_stream(&self) {
        self.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection that broke.
pub(super) fn broken(error: h2::Error) -> Status {
    Status::unreachable(format!("the connection broke: {error}"), Arc::new(error) as Arc<_>)
}

/// What the background task does with a connection until its end.
async fn run(
    driver: Arc<SharedDriver<H2Driver>>,
    pings: Option<PingPong>,
    streams: Arc<AtomicUsize>,
) {
    tokio::select! {
        () = driver.clone().run() => {}
        () = until_silent(pings, &streams) => driver.end(),
    }
}

/// Returns when the server does not respond to a ping.
async fn until_silent(pings: Option<PingPong>, streams: &AtomicUsize) {
    let Some(mut pings) = pings else { return std::future::pending().await };
    loop {
        tokio::time::sleep(PING_INTERVAL).await;
        if streams.load(Ordering::Relaxed) == 0 {
            continue;
        }
        let pong = tokio::time::timeout(PING_LIMIT, pings.ping(Ping::opaque())).await;
        if !matches!(pong, Ok(Ok(_))) {
            return;
        }
    }
}

struct H2Driver {
    connection: Connection<Box<dyn Stream>, Bytes>,
    waker: Arc<QuietWaker>,
    /// `waker`, in the form that h2 takes.
    as_waker: Waker,
}

impl Drive for H2Driver {
    fn poll_drive(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.waker.register(context.waker());
        let mut context = Context::from_waker(&self.as_waker);
        let connection = std::pin::Pin::new(&mut self.connection);
        // Those who wait for a response learn of an error by that.
        connection.poll(&mut context).map(drop)
    }
}
