//! Tables that an earlier version made, and clients of it beside those of this one. `earlier` has
//! the schema and the statements of 0.1 as they were.

use anyhow::{Context, Result, ensure};
use tenure::backend::{Backend, Claim, Mode, Modes, Scope};
use tenure::backends::Postgres;
use tenure::backends::postgres::SCHEMA;
use tenure::{Attempt, FencingToken, Severity};
use tenure_conformance::context::{acquire_free, soon};
use tenure_servers::Cluster;
use tenure_servers::wire::postgres::Postgres as Wire;

use crate::{cases, claim, connect, own_server, password, role, sql};

const EARLIER_SCHEMA: &str = include_str!("earlier/schema.sql");

cases! {
    tables_of_an_earlier_version_are_upgraded,
    a_role_that_may_not_upgrade_goes_on_with_exclusive_locks,
    an_upgrade_does_not_wait_for_a_foreign_transaction,
    a_client_of_an_earlier_version_sees_what_readers_hold_as_held,
    what_a_client_of_an_earlier_version_hands_to_a_reader_is_held,
    a_client_of_an_earlier_version_takes_over_what_readers_left,
    a_sequence_with_small_steps_is_a_fault,
}

/// A client of the earlier version.
struct Earlier(Wire);

impl Earlier {
    fn connect(cluster: &Cluster) -> Result<Earlier> {
        let mut wire = Wire::connect(cluster.node().port())?;
        for statement in [
            include_str!("earlier/acquire.sql"),
            include_str!("earlier/release.sql"),
            include_str!("earlier/renew.sql"),
        ] {
            wire.query(statement)?;
        }
        Ok(Earlier(wire))
    }

    /// Whether the claim holds the key after that.
    fn acquire(&mut self, claim: &Claim) -> Result<bool> {
        let (key, owner, waits) = (key(claim), claim.owner, claim.waits);
        self.0.query(&format!(
            "EXECUTE earlier_acquire ({key}, '{owner}', 600, 'earlier', {waits}, 'earlier')"
        ))?;
        let text = format!(
            "SELECT owner = '{owner}' AND until > now() FROM public.tenure_lease WHERE key = {key}"
        );
        Ok(self.0.query(&text)? == ["t"])
    }

    /// Whether the claim held the key.
    fn release(&mut self, claim: &Claim) -> Result<bool> {
        let (key, owner) = (key(claim), claim.owner);
        Ok(self.0.query(&format!("EXECUTE earlier_release ({key}, '{owner}')"))? == ["t"])
    }

    fn renew(&mut self, claim: &Claim) -> Result<bool> {
        let (key, owner) = (key(claim), claim.owner);
        let text =
            format!("EXECUTE earlier_renew (ARRAY[{key}], '{{{owner}}}', '{{600}}', '{{NULL}}')");
        Ok(self.0.query(&text)? == ["t"])
    }
}

fn key(claim: &Claim) -> String {
    format!("convert_to('{}', 'UTF8')", claim.key)
}

fn reader(key: &str) -> Result<Claim> {
    let mut claim = claim(key)?;
    claim.mode = Mode::Shared;
    Ok(claim)
}

fn waiting(mut claim: Claim) -> Claim {
    claim.waits = true;
    claim
}

async fn acquire(backend: &Postgres, claim: &Claim) -> Result<tenure::backend::Grant> {
    Ok(soon("acquire", backend.try_acquire(claim)).await??.granted()?)
}

async fn is_busy(backend: &Postgres, claim: &Claim) -> Result<bool> {
    Ok(matches!(soon("acquire", backend.try_acquire(claim)).await??, Attempt::Busy(_)))
}

async fn token(backend: &Postgres, claim: &Claim) -> Result<FencingToken> {
    let holdings = soon("list", backend.list(Scope::Key(&claim.key))).await??;
    holdings.first().and_then(|holding| holding.holder().token).context("a holder")
}

async fn tables_of_an_earlier_version_are_upgraded() -> Result<()> {
    let cluster = own_server()?;
    sql(&cluster, EARLIER_SCHEMA)?;
    let mut earlier = Earlier::connect(&cluster)?;
    let (held, next, other) = (claim("held")?, waiting(claim("held")?), claim("other")?);
    ensure!(earlier.acquire(&held)? && !earlier.acquire(&next)?);
    let backend = Postgres::open(&cluster.url()).await?;
    ensure!(backend.info().modes == Modes::ALL);
    let first = token(&backend, &held).await?;
    ensure!(is_busy(&backend, &claim("held")?).await? && earlier.renew(&held)?);
    ensure!(is_busy(&backend, &reader("held")?).await?);
    let grant = acquire(&backend, &other).await?;
    ensure!(grant.tokens == 1024 && grant.token.get() >= first.get() + 1024, "{grant:?} {first}");
    // The earlier client's next token is not in that range.
    ensure!(earlier.release(&held)?);
    let handed = token(&backend, &next).await?;
    ensure!(handed.get() >= grant.token.get() + 1024, "{handed} after {grant:?}");
    ensure!(earlier.release(&next)?);
    // Again, as an operator would.
    sql(&cluster, SCHEMA)?;
    ensure!(Postgres::open(&cluster.url()).await?.info().modes == Modes::ALL);
    Ok(())
}

/// As the page tells an operator to set it up.
async fn a_role_that_may_not_upgrade_goes_on_with_exclusive_locks() -> Result<()> {
    let cluster = own_server()?;
    sql(&cluster, EARLIER_SCHEMA)?;
    role(&cluster, "app", "", &password(&cluster)?)?;
    sql(
        &cluster,
        "GRANT SELECT, INSERT, UPDATE, DELETE ON tenure_lease, tenure_board, tenure_row TO app; \
         GRANT USAGE ON SEQUENCE tenure_token TO app",
    )?;
    for pooler in ["no", "yes"] {
        let url = cluster.url().replace("//postgres:", "//app:");
        let app = Postgres::open(&format!("{url}?pooler={pooler}")).await?;
        ensure!(app.info().modes == Modes::default());
        let (one, two) = (claim(pooler)?, waiting(claim(pooler)?));
        let grant = acquire(&app, &one).await?;
        ensure!(
            grant.tokens == 1
                && is_busy(&app, &two).await?
                && is_busy(&app, &claim(pooler)?).await?
        );
        soon("renew", app.renew(std::slice::from_ref(&one))).await?.remove(0)?;
        ensure!(app.release(&one).await? && !app.release(&one).await?);
        ensure!(acquire(&app, &two).await?.token > grant.token);
        ensure!(app.evict(&two.key, token(&app, &two).await?).await?);
        let findings = soon("doctor", app.doctor()).await??;
        let found = findings.iter().find(|one| one.subject == "modes").map(|one| one.severity);
        ensure!(found == Some(Severity::Notice), "{findings:?}");
    }
    let url = cluster.url().replace("//postgres:", "//app:");
    let client = connect(&url).await?;
    let _held = acquire_free(&client.lock("held")).await?;
    let app = Postgres::open(&url).await?;
    meets_a_client_with_modes(&cluster, &app).await
}

/// The operator upgrades the tables while the client, which has exclusive locks only, goes on.
async fn meets_a_client_with_modes(cluster: &Cluster, app: &Postgres) -> Result<()> {
    sql(cluster, SCHEMA)?;
    let backend = Postgres::open(&cluster.url()).await?;
    ensure!(backend.info().modes == Modes::ALL && app.info().modes == Modes::default());
    let (writer, first) = (claim("k")?, waiting(reader("k")?));
    let (next, mut second) = (waiting(claim("k")?), reader("k")?);
    acquire(app, &writer).await?;
    ensure!(is_busy(&backend, &first).await?);
    ensure!(acquire(app, &writer).await.is_ok(), "it holds the key, and a reader waits");
    ensure!(app.release(&writer).await?);
    ensure!(soon("the push", backend.until_free(&first)).await?.is_some());
    second.token = Some(acquire(&backend, &second).await?.token);
    ensure!(is_busy(app, &claim("k")?).await? && is_busy(app, &next).await?);
    ensure!(token(app, &next).await? < second.token.context("granted")?);
    ensure!(app.evict(&first.key, token(app, &first).await?).await?);
    ensure!(backend.release(&second).await?);
    ensure!(soon("the push", app.until_free(&next)).await?.is_some());
    ensure!(app.release(&next).await?);
    Ok(())
}

/// What waits for a table stops everything behind it: an upgrade gives up instead.
async fn an_upgrade_does_not_wait_for_a_foreign_transaction() -> Result<()> {
    let cluster = own_server()?;
    sql(&cluster, EARLIER_SCHEMA)?;
    let mut foreign = Wire::connect(cluster.node().port())?;
    foreign.query("BEGIN; SELECT count(*) FROM public.tenure_lease")?;
    let backend = soon("connect", Postgres::open(&cluster.url())).await??;
    ensure!(backend.info().modes == Modes::default());
    acquire(&backend, &claim("k")?).await?;
    foreign.query("ROLLBACK")?;
    ensure!(Postgres::open(&cluster.url()).await?.info().modes == Modes::ALL);
    Ok(())
}

async fn a_client_of_an_earlier_version_sees_what_readers_hold_as_held() -> Result<()> {
    let cluster = own_server()?;
    let backend = Postgres::open(&cluster.url()).await?;
    let mut earlier = Earlier::connect(&cluster)?;
    for mode in [Mode::Shared, Mode::permits(1, 2)?] {
        let (mut one, mut two) = (claim(mode.name())?, claim(mode.name())?);
        (one.mode, two.mode) = (mode, mode);
        let next = waiting(claim(mode.name())?);
        acquire(&backend, &one).await?;
        acquire(&backend, &two).await?;
        ensure!(!earlier.acquire(&claim(mode.name())?)? && !earlier.acquire(&next)?, "{mode}");
        ensure!(backend.release(&one).await? && !earlier.acquire(&next)?, "{mode}");
        // It was in the queue, so that the release hands the lock to it, as it knows it.
        ensure!(backend.release(&two).await?);
        ensure!(earlier.renew(&next)? && earlier.release(&next)?, "{mode}");
        acquire(&backend, &one).await?;
        ensure!(backend.release(&one).await?);
    }
    Ok(())
}

/// An earlier client makes the first waiter the holder, whatever it waits for: alone.
async fn what_a_client_of_an_earlier_version_hands_to_a_reader_is_held() -> Result<()> {
    let cluster = own_server()?;
    let backend = Postgres::open(&cluster.url()).await?;
    let mut earlier = Earlier::connect(&cluster)?;
    let (writer, mut first) = (claim("k")?, waiting(reader("k")?));
    let second = waiting(reader("k")?);
    ensure!(earlier.acquire(&writer)?);
    ensure!(is_busy(&backend, &first).await? && is_busy(&backend, &second).await?);
    ensure!(earlier.release(&writer)?);
    let pushed = soon("the push", backend.until_free(&first)).await?.context("a grant")?;
    ensure!(acquire(&backend, &first).await?.token == pushed.token);
    first.token = Some(pushed.token);
    soon("renew", backend.renew(std::slice::from_ref(&first))).await?.remove(0)?;
    ensure!(!earlier.acquire(&claim("k")?)?);
    ensure!(is_busy(&backend, &second).await?, "it holds alone");
    ensure!(backend.release(&first).await?);
    ensure!(soon("the push", backend.until_free(&second)).await?.is_some());
    ensure!(backend.release(&second).await?);
    Ok(())
}

/// An earlier client does not know the column of the readers, and leaves what is in it.
async fn a_client_of_an_earlier_version_takes_over_what_readers_left() -> Result<()> {
    let cluster = own_server()?;
    let backend = Postgres::open(&cluster.url()).await?;
    let mut earlier = Earlier::connect(&cluster)?;
    let (one, writer) = (reader("k")?, claim("k")?);
    let ended = acquire(&backend, &one).await?.token;
    sql(
        &cluster,
        "UPDATE tenure_lease SET until = now() - interval '1 s', holders = jsonb_set(holders, \
         '{0,u}', to_jsonb(now() - interval '1 s'))",
    )?;
    ensure!(earlier.acquire(&writer)?);
    // As if the clock had been set back: what is left in the column must not come to life.
    sql(
        &cluster,
        "UPDATE tenure_lease SET holders = jsonb_set(holders, '{0,u}', \
         to_jsonb(now() + interval '1 hour'))",
    )?;
    ensure!(is_busy(&backend, &reader("k")?).await? && is_busy(&backend, &one).await?);
    let renewed = soon("renew", backend.renew(std::slice::from_ref(&one))).await?.remove(0);
    ensure!(renewed.is_err(), "a reader holds beside a writer");
    ensure!(!backend.evict(&one.key, ended).await?);
    let holdings = backend.list(Scope::Key(&one.key)).await?;
    ensure!(holdings[0].holders.len() == 1 && holdings[0].holder().mode == Mode::Exclusive);
    ensure!(!backend.release(&one).await?);
    ensure!(earlier.renew(&writer)? && earlier.release(&writer)?);
    acquire(&backend, &claim("k")?).await?;
    Ok(())
}

async fn a_sequence_with_small_steps_is_a_fault() -> Result<()> {
    let cluster = own_server()?;
    let backend = Postgres::open(&cluster.url()).await?;
    let tokens = async || -> Result<Option<Severity>> {
        let findings = soon("doctor", backend.doctor()).await??;
        Ok(findings.iter().find(|one| one.subject == "tokens").map(|one| one.severity))
    };
    ensure!(tokens().await? == Some(Severity::Good));
    sql(&cluster, "ALTER SEQUENCE tenure_token INCREMENT BY 1")?;
    ensure!(tokens().await? == Some(Severity::Fault));
    Ok(())
}
