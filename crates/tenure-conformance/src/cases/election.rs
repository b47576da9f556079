//! Elections: one leader at a time, a higher token in every term, and observers that see the last
//! leader.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tenure::{Attempt, ErrorKind, Leader, Lease, Observer};
use tokio::sync::mpsc::unbounded_channel;

use super::cases;
use crate::context::{SOON, TestContext, acquire_free, soon, until, until_waiters, within};

cases! { "election":
    one_leader,
    resigning_hands_over,
    an_observer_sees_the_last_leader,
    an_observer_sees_that_there_is_no_leader,
    an_observer_is_no_candidate,
    an_observer_that_was_dropped_at_an_await_misses_nothing,
    lead_is_called_again_with_a_higher_token,
    lead_resigns_when_its_work_has_ended,
    a_dropped_lead_resigns,
    a_shutdown_ends_leaders_candidates_and_observers,
    lead_goes_on_after_an_outage if TestContext::has_network,
}

/// Observes until this holds for the leader.
async fn until_seen(
    seen: &mut Observer,
    what: &str,
    is_it: impl Fn(Option<&Leader>) -> bool,
) -> Result<()> {
    let observing = async {
        loop {
            let leader = seen.next().await?;
            if is_it(leader.as_ref()) {
                return Ok(());
            }
        }
    };
    within(SOON, what, observing).await?
}

async fn one_leader(context: &TestContext) -> Result<()> {
    let (one, two) = (context.client().await?, context.client().await?);
    let election = one.election(context.key("k")).note("http://10.0.0.7");
    let rival = two.election(context.key("k"));
    ensure!(soon("leader", rival.leader()).await??.is_none());
    let leading = soon("campaign", election.campaign()).await??;
    let attempt = soon("try_campaign", rival.try_campaign()).await??;
    ensure!(matches!(attempt, Attempt::Busy(_)), "two leaders");
    let limit = Duration::from_millis(200);
    let attempt = soon("campaign_within", rival.campaign_within(limit)).await??;
    ensure!(matches!(attempt, Attempt::Busy(_)), "two leaders");
    let leader = soon("leader", rival.leader()).await??.context("there is a leader")?;
    ensure!(leader.holder.note == "http://10.0.0.7", "{leader:?}");
    ensure!(leader.token().is_none_or(|token| token == leading.token()), "{leader:?}");
    leading.release().await?;
    soon("campaign", rival.campaign()).await??.release().await?;
    Ok(())
}

async fn resigning_hands_over(context: &TestContext) -> Result<()> {
    let (one, two) = (context.client().await?, context.client().await?);
    let leading = soon("campaign", one.election(context.key("k")).campaign()).await??;
    let candidate = tokio::spawn(two.election(context.key("k")).campaign());
    until_waiters(&one.lock(context.key("k")), 1).await?;
    let leader = soon("leader", two.election(context.key("k")).leader()).await??;
    ensure!(leader.is_some_and(|leader| leader.candidates.len() == 1));
    let token = leading.token();
    leading.release().await?;
    let next = within(context.wakeup_limit(), "the next term", candidate).await???;
    ensure!(next.token() > token, "{} is not above {token}", next.token());
    next.release().await?;
    Ok(())
}

async fn an_observer_sees_the_last_leader(context: &TestContext) -> Result<()> {
    let (one, two) = (context.client().await?, context.client().await?);
    let election = one.election(context.key("k"));
    let mut seen = two.election(context.key("k")).observe();
    ensure!(soon("the state of now", seen.next()).await??.is_none());
    for _ in 0..3 {
        // Terms that nothing waits for: they need not be seen.
        for _ in 0..3 {
            soon("campaign", election.campaign()).await??.release().await?;
        }
        let last = soon("campaign", election.campaign()).await??;
        let token = last.token();
        until_seen(&mut seen, "the last leader", |leader| {
            leader.is_some_and(|leader| leader.token().is_none_or(|seen| seen == token))
        })
        .await?;
        last.release().await?;
    }
    until_seen(&mut seen, "that there is none", |leader| leader.is_none()).await
}

async fn an_observer_sees_that_there_is_no_leader(context: &TestContext) -> Result<()> {
    let (one, two) = (context.client().await?, context.client().await?);
    let election = one.election(context.key("k")).ttl(context.short_ttl());
    let leading = soon("campaign", election.campaign()).await??;
    let mut seen = two.election(context.key("k")).observe();
    ensure!(soon("the state of now", seen.next()).await??.is_some());
    ensure!(one.lock(context.key("k")).evict(leading.token()).await?);
    until_seen(&mut seen, "that there is none", |leader| leader.is_none()).await?;
    drop(leading);
    Ok(())
}

async fn an_observer_is_no_candidate(context: &TestContext) -> Result<()> {
    let (one, two) = (context.client().await?, context.client().await?);
    let leading = soon("campaign", one.election(context.key("k")).campaign()).await??;
    let mut seen = two.election(context.key("k")).observe();
    ensure!(soon("the state of now", seen.next()).await??.is_some());
    let observing = tokio::spawn(async move { seen.next().await });
    // Behind it in any queue that it were in.
    let candidate = tokio::spawn(one.election(context.key("k")).campaign());
    until_waiters(&one.lock(context.key("k")), 1).await?;
    leading.release().await?;
    let next = within(context.wakeup_limit(), "the next term", candidate).await???;
    soon("a change", observing).await???;
    next.release().await?;
    soon("flush", one.flush()).await??;
    acquire_free(&one.lock(context.key("k"))).await?.release().await?;
    Ok(())
}

async fn an_observer_that_was_dropped_at_an_await_misses_nothing(
    context: &TestContext,
) -> Result<()> {
    let (one, two) = (context.client().await?, context.client().await?);
    let mut seen = two.election(context.key("k")).observe();
    ensure!(soon("the state of now", seen.next()).await??.is_none());
    let leading = soon("campaign", one.election(context.key("k")).campaign()).await??;
    for polls in 0..10 {
        if super::cancel::poll_and_drop(polls, seen.next()).await {
            // It was seen, and is not reported again: so there is nothing to find below.
            leading.release().await?;
            return until_seen(&mut seen, "the end", |leader| leader.is_none()).await;
        }
    }
    until_seen(&mut seen, "the leader", |leader| leader.is_some()).await?;
    leading.release().await?;
    Ok(())
}

async fn lead_is_called_again_with_a_higher_token(context: &TestContext) -> Result<()> {
    let (one, two) = (context.client().await?, context.client().await?);
    let (sender, mut terms) = unbounded_channel::<Lease>();
    let calls = Arc::new(AtomicU64::new(0));
    let counted = calls.clone();
    let work = move |term: Lease| {
        let _sent = sender.send(term.clone());
        let call = counted.fetch_add(1, Ordering::SeqCst) + 1;
        async move {
            if call < 3 {
                std::future::pending::<()>().await;
            }
            call
        }
    };
    let election = one.election(context.key("k")).ttl(context.short_ttl());
    let leading = tokio::spawn(async move { election.lead(work).await });
    let mut last = None;
    for _ in 0..2 {
        let term = soon("a term", terms.recv()).await?.context("it leads again")?;
        ensure!(last.is_none_or(|last| term.token() > last), "{last:?} then {}", term.token());
        last = Some(term.token());
        ensure!(two.lock(context.key("k")).evict(term.token()).await?, "it is held");
    }
    let term = soon("the last term", terms.recv()).await?.context("it leads again")?;
    ensure!(last.is_some_and(|last| term.token() > last));
    ensure!(soon("the end", leading).await??? == 3 && calls.load(Ordering::SeqCst) == 3);
    acquire_free(&two.lock(context.key("k"))).await?.release().await?;
    Ok(())
}

async fn lead_resigns_when_its_work_has_ended(context: &TestContext) -> Result<()> {
    let client = context.client().await?;
    let election = client.election(context.key("k"));
    let one = soon("the first", election.lead(async |term| term.token())).await??;
    let two = soon("the second", election.lead(async |term| term.token())).await??;
    ensure!(two > one, "{one}, then {two}");
    acquire_free(&client.lock(context.key("k"))).await?.release().await?;
    Ok(())
}

async fn a_dropped_lead_resigns(context: &TestContext) -> Result<()> {
    let client = context.client().await?;
    let election = client.election(context.key("k"));
    let work = |_: Lease| std::future::pending::<()>();
    for polls in 0..20 {
        let ended = super::cancel::poll_and_drop(polls, election.lead(work)).await;
        ensure!(!ended, "work without an end has ended");
        soon("flush", client.flush()).await??;
        let left = soon("leader", election.leader()).await??;
        ensure!(left.is_none(), "dropped after {polls} polls, and left {left:?}");
    }
    Ok(())
}

async fn a_shutdown_ends_leaders_candidates_and_observers(context: &TestContext) -> Result<()> {
    let (one, two) = (context.client().await?, context.client().await?);
    let election = one.election(context.key("k"));
    let (sender, mut terms) = unbounded_channel();
    let leading = tokio::spawn(async move {
        election
            .lead(|term| {
                let _sent = sender.send(());
                async move {
                    term.closing().await;
                    7
                }
            })
            .await
    });
    soon("the term", terms.recv()).await?.context("it leads")?;
    let election = two.election(context.key("k"));
    let candidate = tokio::spawn(async move { election.lead(async |_| ()).await });
    until_waiters(&one.lock(context.key("k")), 1).await?;
    let mut seen = two.election(context.key("k")).observe();
    ensure!(soon("the state of now", seen.next()).await??.is_some());
    let observing = tokio::spawn(async move { seen.next().await });
    soon("shutdown", two.shutdown(Duration::from_secs(10))).await??;
    for (what, ended) in [
        ("candidate", soon("the candidate", candidate).await??.err()),
        ("observer", soon("the observer", observing).await??.err()),
    ] {
        let error = ended.with_context(|| format!("the {what} went on"))?;
        ensure!(error.kind() == ErrorKind::Closed, "{what}: {error:?}");
    }
    soon("shutdown", one.shutdown(Duration::from_secs(10))).await??;
    ensure!(soon("the leader", leading).await??? == 7, "the leader's work has ended by itself");
    Ok(())
}

async fn lead_goes_on_after_an_outage(context: &TestContext) -> Result<()> {
    let network = context.network()?;
    let (steady, shaky) = (context.client().await?, context.client_through(&network).await?);
    let ttl = context.short_ttl().max(Duration::from_secs(2));
    let (sender, mut terms) = unbounded_channel::<Lease>();
    let election = shaky.election(context.key("k")).ttl(ttl);
    let leading = tokio::spawn(async move {
        election
            .lead(|term| {
                let _sent = sender.send(term);
                std::future::pending::<()>()
            })
            .await
    });
    let first = soon("the first term", terms.recv()).await?.context("it leads")?;
    network.cut();
    let Ok(_lost) = within(SOON, "the loss", first.lost()).await else {
        bail!("a leader that is cut off leads on")
    };
    let next = soon("another leader", steady.election(context.key("k")).campaign()).await??;
    ensure!(next.token() > first.token());
    network.heal();
    next.release().await?;
    let again = soon("the last term", terms.recv()).await?.context("it leads again")?;
    ensure!(again.token() > first.token());
    leading.abort();
    let election = steady.election(context.key("k"));
    until(SOON, "the resignation of a dropped leader", || async {
        Ok(election.leader().await?.is_none().then_some(()))
    })
    .await
}
