//! Notifications: a session that listens reads no statement while they keep coming. That takes a
//! hot key and a busy machine, so that it is not played here, but what keeps a client from it is.

use anyhow::{Result, ensure};
use tenure_conformance::context::{SOON, soon, until};

use crate::{cases, connect, own_server, sql};

cases! {
    the_session_that_listens_executes_no_statement,
}

/// Whatever its client does, the last statement of such a session is the one that made it listen.
async fn the_session_that_listens_executes_no_statement() -> Result<()> {
    let cluster = own_server()?;
    for mode in ["lease", "session", "row"] {
        let url = format!("{}?mode={mode}", cluster.url());
        let (one, two) = (connect(&url).await?, connect(&url).await?);
        let mut tasks = tokio::task::JoinSet::new();
        for client in [&one, &two] {
            for _ in 0..8 {
                let lock = client.lock("k");
                tasks.spawn(async move { lock.acquire().await?.release().await });
            }
        }
        while let Some(released) = soon("a grant", tasks.join_next()).await? {
            released??;
        }
        let listening = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle' \
                         AND application_name = 'tenure' AND query LIKE '%LISTEN tenure%'";
        let listening = sql(&cluster, listening)?;
        ensure!(listening == ["2"], "mode={mode}: {listening:?} of 2 clients");
        drop((one, two));
        let left = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'tenure%'";
        let none = || async { Ok((sql(&cluster, left)? == ["0"]).then_some(())) };
        until(SOON, "the end of the connections", none).await?;
    }
    Ok(())
}
