//! The event loop of the supervisor: its main thread waits here for the library, the launcher, its
//! child processes and the clock, all at once.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::channel::{Endpoint, Received, ToLauncher, ToSupervisor};
use super::clock::{Moment, Timer};
use super::signals::{SignalReader, ends_the_wait, requests_exit};

/// An event that the supervisor reacts to.
#[derive(Debug)]
pub(super) enum LoopEvent {
    /// The library made progress: a future can be polled, or a lease was renewed or lost.
    Wakeup,
    /// A child process ended, stopped or continued.
    Child,
    /// The launcher sent a message.
    Launcher(ToSupervisor),
    /// The launcher has ended.
    LauncherEnded,
    /// The deadline has passed.
    Deadline,
}

/// Why a future was dropped before it was ready.
#[derive(Debug)]
pub(super) enum Interrupt {
    LauncherEnded,
    Deadline,
    InputEnded,
    Signal(i32),
    System(io::Error),
}

/// All sources of events.
pub(super) struct EventLoop {
    /// `None` after the launcher has ended.
    launcher: Option<Endpoint<ToLauncher, ToSupervisor>>,
    signals: SignalReader,
    timer: Timer,
    waker: Arc<LoopWaker>,
    exit_requested: bool,
    stop_requested: bool,
    input_ended: bool,
}

impl EventLoop {
    pub(super) fn new(launcher: Endpoint<ToLauncher, ToSupervisor>) -> io::Result<EventLoop> {
        let waker = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(EventLoop {
            launcher: Some(launcher),
            signals: SignalReader::for_supervisor()?,
            timer: Timer::new()?,
            waker: Arc::new(LoopWaker(waker)),
            exit_requested: false,
            stop_requested: false,
            input_ended: false,
        })
    }

    /// Whether the launcher still runs, as far as this process knows.
    pub(super) fn has_launcher(&self) -> bool {
        self.launcher.is_some()
    }

    /// Whether the launcher has ever received a signal that requests a program to exit.
    pub(super) fn exit_requested(&self) -> bool {
        self.exit_requested
    }

    /// Whether one of these signals was more than a HUP, at which services read their files again.
    pub(super) fn stop_requested(&self) -> bool {
        self.stop_requested
    }

    /// Whether the input of `tenure hold` has ended.
    pub(super) fn input_ended(&self) -> bool {
        self.input_ended
    }

    /// A handle that wakes this loop from any thread.
    pub(super) fn waker(&self) -> Arc<LoopWaker> {
        self.waker.clone()
    }

    /// Sends a message to the launcher, if it still runs.
    pub(super) fn send(&self, message: ToLauncher) {
        if let Some(launcher) = &self.launcher {
            launcher.send(message);
        }
    }

    /// Waits for the next event.
    pub(super) fn next(&mut self, deadline: Option<Moment>) -> io::Result<LoopEvent> {
        self.timer.set(deadline)?;
        loop {
            if let Some(event) = self.pending() {
                return Ok(event);
            }
            let mut sources = vec![
                PollFd::new(&self.waker.0, PollFlags::IN),
                PollFd::new(&self.signals, PollFlags::IN),
                PollFd::new(&self.timer, PollFlags::IN),
            ];
            sources.extend(self.launcher.iter().map(|end| PollFd::new(end, PollFlags::IN)));
            match poll(&mut sources, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The first event that has already happened. The order is a priority: the ends of processes
    /// and the launcher's signals come before the library and the deadline.
    fn pending(&mut self) -> Option<LoopEvent> {
        if self.signals.next().is_some() {
            while self.signals.next().is_some() {}
            return Some(LoopEvent::Child);
        }
        match self.launcher.as_ref().map(Endpoint::next) {
            Some(Received::Message(message)) => {
                if let ToSupervisor::Signal(signal) = message {
                    self.exit_requested |= requests_exit(signal);
                    self.stop_requested |= requests_exit(signal) && signal != libc::SIGHUP;
                }
                self.input_ended |= message == ToSupervisor::InputEnded;
                return Some(LoopEvent::Launcher(message));
            }
            Some(Received::Closed) => {
                self.launcher = None;
                return Some(LoopEvent::LauncherEnded);
            }
            Some(Received::Nothing) | None => {}
        }
        if self.waker.was_woken() {
            return Some(LoopEvent::Wakeup);
        }
        self.timer.is_due().then_some(LoopEvent::Deadline)
    }

    /// Runs a future of the library until it is ready, unless a signal, the end of the launcher or
    /// the deadline comes first.
    pub(super) fn run<T>(
        &mut self,
        future: impl Future<Output = T>,
        deadline: Option<Moment>,
    ) -> Result<T, Interrupt> {
        self.drive(future, deadline, |event| match event {
            LoopEvent::Launcher(ToSupervisor::Signal(signal)) if ends_the_wait(*signal) => {
                Some(Interrupt::Signal(*signal))
            }
            LoopEvent::Launcher(ToSupervisor::InputEnded) => Some(Interrupt::InputEnded),
            LoopEvent::LauncherEnded => Some(Interrupt::LauncherEnded),
            _ => None,
        })
    }

    /// Runs a future that must not be interrupted, such as a release: only the deadline ends it
    /// early.
    pub(super) fn run_to_completion<T>(
        &mut self,
        future: impl Future<Output = T>,
        deadline: Moment,
    ) -> Result<T, Interrupt> {
        self.drive(future, Some(deadline), |_| None)
    }

    fn drive<T>(
        &mut self,
        future: impl Future<Output = T>,
        deadline: Option<Moment>,
        interrupts: impl Fn(&LoopEvent) -> Option<Interrupt>,
    ) -> Result<T, Interrupt> {
        let mut future = pin!(future);
        let waker = Waker::from(self.waker());
        let mut context = Context::from_waker(&waker);
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return Ok(output);
            }
            loop {
                match self.next(deadline).map_err(Interrupt::System)? {
                    LoopEvent::Wakeup => break,
                    LoopEvent::Deadline => return Err(Interrupt::Deadline),
                    event => {
                        if let Some(interrupt) = interrupts(&event) {
                            return Err(interrupt);
                        }
                    }
                }
            }
        }
    }
}

/// Wakes the event loop from any thread.
pub(super) struct LoopWaker(OwnedFd);

impl LoopWaker {
    pub(super) fn notify(&self) {
        // The counter is full only if a wake-up is pending already.
        let _pending_already = rustix::io::write(self.0.as_fd(), &1_u64.to_ne_bytes());
    }

    /// Whether it was notified since the last call.
    fn was_woken(&self) -> bool {
        let mut count = [0_u8; 8];
        rustix::io::read(self.0.as_fd(), &mut count).is_ok()
    }
}

impl Wake for LoopWaker {
    fn wake(self: Arc<Self>) {
        self.notify();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.notify();
    }
}
