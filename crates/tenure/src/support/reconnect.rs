//! One shared connection that is replaced when it is dead, by one dial at a time.
//!
//! Many tasks use the connection, and all of them notice at about the same time that it is dead.
//! Three things must not happen then:
//!
//! - *Many dials.* Callers take turns at a lock; the second one finds the connection of the first.
//! - *Many failures in a row.* If a server is silent, each dial lasts until its timeout. A failure
//!   is therefore the response to every caller that requested before the failure: with ten callers,
//!   the tenth waits for one timeout and not for ten.
//! - *A dial that never ends.* A caller may have less time than a dial needs, and its future is
//!   dropped. The dial runs in a task of its own, so that the next caller finds its connection.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::sync::Mutex;
use crate::error::{Error, ErrorKind, Result};

/// How a connection of one kind is made and judged.
pub(crate) trait Connector: Send + Sync + 'static {
    type Connection: Send + Sync + 'static;

    /// The shortest time from a failed dial to the next one. Without it, a server that refuses at
    /// once would be dialed as often as there are callers.
    const PAUSE: Duration = Duration::ZERO;

    /// Dials. `previous` is the dead connection that will be replaced, if there was one.
    fn connect(
        &self,
        previous: Option<&Arc<Self::Connection>>,
    ) -> impl Future<Output = Result<Self::Connection>> + Send;

    /// Whether the connection can carry another request, as far as is known without I/O.
    fn is_alive(&self, connection: &Self::Connection) -> bool;

    /// Called when a new connection is in place, before any caller gets it.
    fn connected(&self, previous: Option<&Arc<Self::Connection>>) {
        let _unused_by_default = previous;
    }
}

/// The current connection of a [`Connector`], replaced on request when it is dead.
pub(crate) struct Reconnect<C: Connector> {
    inner: Arc<ReconnectState<C>>,
}

struct ReconnectState<C: Connector> {
    connector: C,
    current: Mutex<Option<Arc<C::Connection>>>,
    /// Locked during a dial; holds what became of the last one, if it failed.
    dialing: tokio::sync::Mutex<Option<Failure>>,
}

struct Failure {
    at: Instant,
    error: Error,
}

impl<C: Connector> Reconnect<C> {
    /// Without a connection: the first caller dials.
    pub(crate) fn new(connector: C) -> Reconnect<C> {
        let current = Mutex::new(None);
        let dialing = tokio::sync::Mutex::new(None);
        Reconnect { inner: Arc::new(ReconnectState { connector, current, dialing }) }
    }

    pub(crate) fn connector(&self) -> &C {
        &self.inner.connector
    }

    /// The connection of the last successful dial, also if it is dead by now.
    pub(crate) fn current(&self) -> Option<Arc<C::Connection>> {
        self.inner.current.lock().clone()
    }

    /// The current connection, if it is alive.
    pub(crate) fn alive(&self) -> Option<Arc<C::Connection>> {
        self.inner.alive()
    }

    /// Puts a connection in place that was made otherwise, without [`Connector::connected`].
    pub(crate) fn set(&self, connection: Arc<C::Connection>) {
        *self.inner.current.lock() = Some(connection);
    }

    /// The current connection, or a new one if it is dead.
    ///
    /// # Errors
    ///
    /// That of the dial; it is also returned to every other caller that waited for this dial.
    ///
    /// # Cancel safety
    ///
    /// Safe: the dial goes on without this caller.
    pub(crate) async fn get(&self) -> Result<Arc<C::Connection>> {
        if let Some(connection) = self.alive() {
            return Ok(connection);
        }
        let requested = Instant::now();
        let inner = self.inner.clone();
        let dial = tokio::spawn(async move { inner.dial(requested).await });
        dial.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Closed, "the runtime has ended")))
    }
}

impl<C: Connector> ReconnectState<C> {
    fn alive(&self) -> Option<Arc<C::Connection>> {
        let current = self.current.lock().clone();
        current.filter(|connection| self.connector.is_alive(connection))
    }

    async fn dial(&self, requested: Instant) -> Result<Arc<C::Connection>> {
        let mut failure = self.dialing.lock().await;
        // Another caller may have dialed while this one waited for its turn.
        if let Some(connection) = self.alive() {
            return Ok(connection);
        }
        if let Some(Failure { at, error }) = &*failure {
            if *at >= requested {
                return Err(error.clone());
            }
            tokio::time::sleep_until(*at + C::PAUSE).await;
        }
        let previous = self.current.lock().clone();
        match self.connector.connect(previous.as_ref()).await {
            Ok(connection) => {
                *failure = None;
                let connection = Arc::new(connection);
                *self.current.lock() = Some(connection.clone());
                self.connector.connected(previous.as_ref());
                Ok(connection)
            }
            Err(error) => {
                *failure = Some(Failure { at: Instant::now(), error: error.clone() });
                Err(error)
            }
        }
    }
}

impl<C: Connector> Clone for Reconnect<C> {
    fn clone(&self) -> Reconnect<C> {
        Reconnect { inner: self.inner.clone() }
    }
}

impl<C: Connector + fmt::Debug> fmt::Debug for Reconnect<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reconnect").field(&self.inner.connector).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use super::*;

    const DIAL: Duration = Duration::from_millis(100);
    const PAUSE: Duration = Duration::from_millis(20);

    /// Numbers its connections; each dial takes [`DIAL`].
    #[derive(Debug, Default)]
    struct Counter {
        dials: AtomicU32,
        refuses: AtomicBool,
        /// The number of the connection that each successful dial replaced.
        replaced: Mutex<Vec<Option<u32>>>,
    }

    #[derive(Debug)]
    struct Numbered {
        number: u32,
        dead: AtomicBool,
    }

    impl Connector for Counter {
        type Connection = Numbered;
        const PAUSE: Duration = PAUSE;

        async fn connect(&self, _previous: Option<&Arc<Numbered>>) -> Result<Numbered> {
            let number = self.dials.fetch_add(1, Ordering::Relaxed) + 1;
            tokio::time::sleep(DIAL).await;
            if self.refuses.load(Ordering::Relaxed) {
                let message = format!("dial {number} was refused");
                return Err(Error::new(ErrorKind::Unavailable, message));
            }
            Ok(Numbered { number, dead: AtomicBool::new(false) })
        }

        fn is_alive(&self, connection: &Numbered) -> bool {
            !connection.dead.load(Ordering::Relaxed)
        }

        fn connected(&self, previous: Option<&Arc<Numbered>>) {
            self.replaced.lock().push(previous.map(|previous| previous.number));
        }
    }

    fn reconnect() -> Reconnect<Counter> {
        Reconnect::new(Counter::default())
    }

    fn dials(reconnect: &Reconnect<Counter>) -> u32 {
        reconnect.connector().dials.load(Ordering::Relaxed)
    }

    fn refuse(reconnect: &Reconnect<Counter>, refuses: bool) {
        reconnect.connector().refuses.store(refuses, Ordering::Relaxed);
    }

    /// Ten callers at once.
    async fn ten(reconnect: &Reconnect<Counter>) -> Vec<Result<Arc<Numbered>>> {
        futures_util::future::join_all((0..10).map(|_| reconnect.get())).await
    }

    #[tokio::test(start_paused = true)]
    async fn several_callers_share_one_dial() {
        let reconnect = reconnect();
        for connection in ten(&reconnect).await {
            assert_eq!(connection.unwrap().number, 1);
        }
        assert_eq!(dials(&reconnect), 1);
        assert_eq!(reconnect.get().await.unwrap().number, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_the_response_to_all_who_waited_for_it() {
        let reconnect = reconnect();
        refuse(&reconnect, true);
        let start = Instant::now();
        for connection in ten(&reconnect).await {
            assert!(connection.unwrap_err().to_string().contains("dial 1 was refused"));
        }
        assert_eq!(dials(&reconnect), 1);
        assert!(start.elapsed() < 2 * DIAL, "one timeout for all of them");
    }

    #[tokio::test(start_paused = true)]
    async fn a_later_caller_dials_again_but_not_at_once() {
        let reconnect = reconnect();
        refuse(&reconnect, true);
        assert!(reconnect.get().await.is_err());
        refuse(&reconnect, false);
        tokio::time::advance(PAUSE / 4).await;
        let start = Instant::now();
        assert_eq!(reconnect.get().await.unwrap().number, 2);
        let waited = start.elapsed();
        assert!((DIAL + PAUSE / 2..DIAL + PAUSE).contains(&waited), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_caller_does_not_stop_the_dial() {
        let reconnect = reconnect();
        assert!(tokio::time::timeout(DIAL / 2, reconnect.get()).await.is_err());
        assert!(reconnect.current().is_none());
        tokio::time::sleep(DIAL).await;
        assert_eq!(reconnect.alive().unwrap().number, 1);
        assert_eq!(reconnect.get().await.unwrap().number, 1);
        assert_eq!(dials(&reconnect), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_dead_connection_is_replaced_once() {
        let reconnect = reconnect();
        let first = reconnect.get().await.unwrap();
        first.dead.store(true, Ordering::Relaxed);
        assert!(reconnect.alive().is_none());
        assert_eq!(reconnect.current().unwrap().number, 1, "it stays until it is replaced");
        for connection in ten(&reconnect).await {
            assert_eq!(connection.unwrap().number, 2);
        }
        assert_eq!(*reconnect.connector().replaced.lock(), [None, Some(1)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_dial_keeps_the_dead_connection_for_the_next_one() {
        let reconnect = reconnect();
        reconnect.get().await.unwrap().dead.store(true, Ordering::Relaxed);
        refuse(&reconnect, true);
        assert!(reconnect.get().await.is_err());
        refuse(&reconnect, false);
        tokio::time::advance(PAUSE).await;
        assert_eq!(reconnect.get().await.unwrap().number, 3);
        assert_eq!(*reconnect.connector().replaced.lock(), [None, Some(1)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_made_otherwise_is_used() {
        let reconnect = reconnect();
        reconnect.set(Arc::new(Numbered { number: 7, dead: AtomicBool::new(false) }));
        assert_eq!(reconnect.get().await.unwrap().number, 7);
        assert_eq!(dials(&reconnect), 0);
    }

    #[test]
    fn a_dial_of_a_runtime_that_ended_does_not_block_the_next_one() {
        let runtime =
            || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let reconnect = reconnect();
        let short = runtime();
        let impatient = async { tokio::time::timeout(DIAL / 4, reconnect.get()).await };
        assert!(short.block_on(impatient).is_err());
        drop(short);
        assert_eq!(runtime().block_on(reconnect.get()).unwrap().number, 2);
    }
}
