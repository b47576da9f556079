//! Futures of the engine that run on the caller's own thread, but do not end with the caller.
//!
//! A request that is sent from the client's background thread costs two changes of threads: one to
//! start it there, one to bring its response back. So the engine lets the caller poll the future of
//! a request itself. What the background thread gave for free has to hold all the same:
//!
//! - **Timers and sockets** belong to the client's own runtime, whichever runtime or executor the
//!   caller has: the future is polled inside of the client's context.
//! - **Cancel safety.** A caller that drops its future must not stop a request halfway. So the
//!   future is owned by an [`InPlace`], whose drop does not drop it: it hands it to the background,
//!   which completes it and cleans up after it.
//! - **A caller that stalls** only delays its own request. Nothing else waits for it: renewals,
//!   releases and waiting claims run in the background.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;

use crate::engine::ClientInner;

/// A future that its caller polls. Dropped before its end, it is handed to `detach`, which has to
/// complete it.
pub(crate) struct InPlace<T, D>
where
    D: FnOnce(&Arc<ClientInner>, BoxFuture<'static, T>),
{
    inner: Arc<ClientInner>,
    /// `None` when it has ended.
    future: Option<BoxFuture<'static, T>>,
    detach: Option<D>,
}

impl<T, D> InPlace<T, D>
where
    D: FnOnce(&Arc<ClientInner>, BoxFuture<'static, T>),
{
    pub(crate) fn new(
        inner: Arc<ClientInner>,
        future: impl Future<Output = T> + Send + 'static,
        detach: D,
    ) -> InPlace<T, D> {
        InPlace { inner, future: Some(Box::pin(future)), detach: Some(detach) }
    }

    /// Polls it inside of the client's context.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<T> {
        let Some(future) = &mut self.future else { return Poll::Pending };
        let output = self.inner.executor.in_context(|| future.as_mut().poll(context));
        if output.is_ready() {
            self.future = None;
        }
        output
    }
}

impl<T, D> Future for InPlace<T, D>
where
    D: FnOnce(&Arc<ClientInner>, BoxFuture<'static, T>) + Unpin,
{
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        InPlace::poll(&mut self, context)
    }
}

impl<T, D> Drop for InPlace<T, D>
where
    D: FnOnce(&Arc<ClientInner>, BoxFuture<'static, T>),
{
    fn drop(&mut self) {
        if let (Some(future), Some(detach)) = (self.future.take(), self.detach.take()) {
            detach(&self.inner, future);
        }
    }
}
