//! The few connections of a client. The first one also listens; others are opened only when
//! statements pile up, so that a client that does one thing at a time has one connection.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use tokio_postgres::Row;

use super::bells::Bells;
use super::fault;
use super::link::{Link, SETUP, Sql, Value};
use super::settings::Settings;
use crate::claim::Owner;
use crate::error::Result;

/// The connections of a client that hold no lock themselves.
pub(super) struct Lanes {
    pub(super) settings: Settings,
    pub(super) bells: Arc<Bells>,
    /// The channel on which the server rings this client.
    pub(super) channel: String,
    links: Mutex<Links>,
    /// A connection for requests that must not wait behind others, while there are such.
    prompt: tokio::sync::Mutex<Weak<Link>>,
    /// Held while a connection is being opened.
    opening: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Links {
    /// Opened first and listening.
    first: Option<Arc<Link>>,
    others: Vec<Arc<Link>>,
}

impl Lanes {
    pub(super) fn new(settings: Settings) -> Arc<Lanes> {
        // The part of an owner that names its client: random, and fit for an identifier.
        let name = Owner::random().to_string().replace(['-', ':'], "_");
        Arc::new(Lanes {
            settings,
            bells: Arc::default(),
            channel: format!("tenure_{name}"),
            links: Mutex::default(),
            prompt: tokio::sync::Mutex::default(),
            opening: tokio::sync::Mutex::new(()),
        })
    }

    /// How many connections there can be.
    pub(super) fn most(&self) -> usize {
        self.settings.connections
    }

    /// Runs a statement on the connection that has least to do.
    pub(super) async fn ask(
        self: &Arc<Self>,
        sql: &'static Sql,
        values: Vec<Value>,
    ) -> Result<Vec<Row>> {
        self.pick().await?.ask(sql, values).await
    }

    /// The same for what must not wait behind requests that are held up: if there is no response
    /// within `patience`, it is sent over a connection for such requests as well, which is closed
    /// when it has nothing more to do. The statement has to bear to be carried out twice.
    pub(super) async fn ask_promptly(
        self: &Arc<Self>,
        sql: &'static Sql,
        values: impl Fn() -> Vec<Value> + Send + Sync,
        patience: Duration,
    ) -> Result<Vec<Row>> {
        let mut usual = Box::pin(self.ask(sql, values()));
        if let Ok(response) = tokio::time::timeout(patience, &mut usual).await {
            return response;
        }
        let apart = async { self.prompt().await?.ask(sql, values()).await };
        futures_util::future::select_ok([usual.boxed(), apart.boxed()]).await.map(|(rows, _)| rows)
    }

    /// The one connection for requests that must not wait.
    async fn prompt(self: &Arc<Self>) -> Result<Arc<Link>> {
        let mut prompt = self.prompt.lock().await;
        if let Some(link) = prompt.upgrade().filter(|link| !link.is_closed()) {
            return Ok(link);
        }
        let link = Arc::new(self.open_apart().await?);
        *prompt = Arc::downgrade(&link);
        Ok(link)
    }

    /// The connection that has least to do. Afterwards the first one listens.
    pub(super) async fn pick(self: &Arc<Self>) -> Result<Arc<Link>> {
        match self.choose() {
            Choice::Take(link) => Ok(link),
            Choice::TakeAndOpen(link) => {
                // Whoever comes next may find it; this statement does not wait for it.
                drop(tokio::spawn(self.clone().open()));
                Ok(link)
            }
            // In a task: a caller with little patience must not undo what the next one needs.
            Choice::Open => match tokio::spawn(self.clone().open()).await {
                Ok(opened) => opened,
                Err(_) => Err(fault::closed()),
            },
        }
    }

    /// Makes a connection the first one: sets it up, and lets it listen.
    pub(super) async fn adopt(&self, link: Arc<Link>) -> Result<()> {
        link.batch(self.first_setup()).await?;
        self.links().first = Some(link);
        Ok(())
    }

    fn first_setup(&self) -> String {
        format!("{SETUP}LISTEN {}; ", self.channel)
    }

    /// A connection on which nothing is set yet.
    pub(super) async fn open_bare(&self) -> Result<Link> {
        Link::open(&self.settings, &self.bells, "").await
    }

    /// A connection of its own, for a lock that hangs on it.
    pub(super) async fn open_apart(&self) -> Result<Link> {
        Link::open(&self.settings, &self.bells, SETUP).await
    }

    fn choose(&self) -> Choice {
        let mut links = self.links();
        links.others.retain(|link| !link.is_closed());
        let Some(first) = links.first.clone().filter(|link| !link.is_closed()) else {
            return Choice::Open;
        };
        let all = links.others.iter().chain([&first]);
        let least = all.min_by_key(|link| link.busy()).unwrap_or(&first).clone();
        if least.busy() > 0 && links.others.len() + 1 < self.settings.connections {
            return Choice::TakeAndOpen(least);
        }
        Choice::Take(least)
    }

    async fn open(self: Arc<Self>) -> Result<Arc<Link>> {
        let _alone = self.opening.lock().await;
        // Somebody may have opened it while we waited for our turn.
        let first = match self.choose() {
            Choice::Take(link) => return Ok(link),
            Choice::TakeAndOpen(_) => false,
            Choice::Open => true,
        };
        let setup = match first {
            true => self.first_setup(),
            false => SETUP.to_owned(),
        };
        let link = Arc::new(Link::open(&self.settings, &self.bells, &setup).await?);
        let mut links = self.links();
        match first {
            true => links.first = Some(link.clone()),
            false => links.others.push(link.clone()),
        }
        drop(links);
        if first {
            // What was pushed before we listened is lost.
            self.bells.deaf();
        }
        Ok(link)
    }

    fn links(&self) -> MutexGuard<'_, Links> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Choice {
    Take(Arc<Link>),
    TakeAndOpen(Arc<Link>),
    Open,
}

/// How often somebody who has no place in a queue looks.
pub(super) const LOOK: Duration = Duration::from_millis(250);
