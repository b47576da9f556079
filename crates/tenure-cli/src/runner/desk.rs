//! Where the keeper waits: for the library, for the front, for its children and for the time, all
//! at once and on its main thread.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::pair::{End, News, ToFront, ToKeeper};
use super::signals::{Inbox, asks_to_leave, ends_the_wait};
use super::time::{Alarm, Moment};

/// What there is to react to.
#[derive(Debug)]
pub(super) enum Call {
    /// The library has news: a future got on, a lease was renewed or lost.
    Bell,
    /// Something happened to a child.
    Child,
    /// The front says something.
    Front(ToKeeper),
    /// The front is dead.
    FrontGone,
    /// The deadline has come.
    Time,
}

/// Why a future was not waited for to its end.
#[derive(Debug)]
pub(super) enum Cut {
    FrontGone,
    Late,
    Signal(i32),
    System(io::Error),
}

pub(super) struct Desk {
    front: Option<End<ToFront, ToKeeper>>,
    inbox: Inbox,
    alarm: Alarm,
    bell: Arc<Bell>,
    asked_to_leave: bool,
}

impl Desk {
    pub(super) fn new(front: End<ToFront, ToKeeper>) -> io::Result<Desk> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Desk {
            front: Some(front),
            inbox: Inbox::of_keeper()?,
            alarm: Alarm::new()?,
            bell: Arc::new(Bell(bell)),
            asked_to_leave: false,
        })
    }

    /// Whether there is still somebody to tell.
    pub(super) fn has_front(&self) -> bool {
        self.front.is_some()
    }

    /// Whether the front was sent a signal that asks a program to end, at any time so far.
    pub(super) fn asked_to_leave(&self) -> bool {
        self.asked_to_leave
    }

    /// Rings this desk, from any thread.
    pub(super) fn bell(&self) -> Arc<Bell> {
        self.bell.clone()
    }

    pub(super) fn tell(&self, message: ToFront) {
        if let Some(front) = &self.front {
            front.send(message);
        }
    }

    /// Waits for the next thing to react to.
    pub(super) fn next(&mut self, deadline: Option<Moment>) -> io::Result<Call> {
        self.alarm.set(deadline)?;
        loop {
            if let Some(call) = self.look() {
                return Ok(call);
            }
            let mut sources = vec![
                PollFd::new(&self.bell.0, PollFlags::IN),
                PollFd::new(&self.inbox, PollFlags::IN),
                PollFd::new(&self.alarm, PollFlags::IN),
            ];
            sources.extend(self.front.iter().map(|front| PollFd::new(front, PollFlags::IN)));
            match poll(&mut sources, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn look(&mut self) -> Option<Call> {
        if self.inbox.next().is_some() {
            while self.inbox.next().is_some() {}
            return Some(Call::Child);
        }
        match self.front.as_ref().map(End::next) {
            Some(News::Message(message)) => {
                self.asked_to_leave |=
                    matches!(message, ToKeeper::Signal(signal) if asks_to_leave(signal));
                return Some(Call::Front(message));
            }
            Some(News::Gone) => {
                self.front = None;
                return Some(Call::FrontGone);
            }
            Some(News::Nothing) | None => {}
        }
        if self.bell.was_rung() {
            return Some(Call::Bell);
        }
        self.alarm.rings().then_some(Call::Time)
    }

    /// Drives a future of the library to its end, unless a signal, the front's death or the
    /// deadline comes first.
    pub(super) fn finish<T>(
        &mut self,
        future: impl Future<Output = T>,
        deadline: Option<Moment>,
    ) -> Result<T, Cut> {
        self.drive(future, deadline, |call| match call {
            Call::Front(ToKeeper::Signal(signal)) if ends_the_wait(*signal) => {
                Some(Cut::Signal(*signal))
            }
            Call::FrontGone => Some(Cut::FrontGone),
            _ => None,
        })
    }

    /// The same for what has to be done in any case: only the deadline comes before its end.
    pub(super) fn settle<T>(
        &mut self,
        future: impl Future<Output = T>,
        deadline: Moment,
    ) -> Result<T, Cut> {
        self.drive(future, Some(deadline), |_| None)
    }

    fn drive<T>(
        &mut self,
        future: impl Future<Output = T>,
        deadline: Option<Moment>,
        ends: impl Fn(&Call) -> Option<Cut>,
    ) -> Result<T, Cut> {
        let mut future = pin!(future);
        let waker = Waker::from(self.bell());
        let mut context = Context::from_waker(&waker);
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return Ok(output);
            }
            loop {
                match self.next(deadline).map_err(Cut::System)? {
                    Call::Bell => break,
                    Call::Time => return Err(Cut::Late),
                    call => {
                        if let Some(cut) = ends(&call) {
                            return Err(cut);
                        }
                    }
                }
            }
        }
    }
}

/// Wakes the desk from any thread.
pub(super) struct Bell(OwnedFd);

impl Bell {
    pub(super) fn ring(&self) {
        // It is full only if it has been rung and not heard yet.
        let _rung_already = rustix::io::write(self.0.as_fd(), &1_u64.to_ne_bytes());
    }

    fn was_rung(&self) -> bool {
        let mut count = [0_u8; 8];
        rustix::io::read(self.0.as_fd(), &mut count).is_ok()
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
    }
}
