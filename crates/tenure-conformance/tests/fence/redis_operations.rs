//! What Redis does under a fence besides setting: deleting, adding, and scripts of the caller.

use anyhow::{Context, Result, ensure};
use redis::Script;
use redis::aio::MultiplexedConnection;
use tenure::fence::redis::{CHECK, admit, delete, increment, key, refused, set};

use crate::{cases, token, unique};

const SELL: &str = "
    local refused = tenure_admit(KEYS[2], ARGV[1])
    if refused then return refused end
    if tonumber(redis.call('GET', KEYS[1]) or 0) < 1 then return 0 end
    redis.call('DECR', KEYS[1])
    return 1";

cases! {
    redis_deletes_and_adds_only_for_a_token_that_is_not_older on &["redis"];
    a_script_of_the_caller_includes_the_check on &["redis"];
    a_script_of_a_reader_includes_the_check on &["redis"];
}

async fn get(db: &mut MultiplexedConnection, name: &str) -> Result<Option<i64>> {
    Ok(redis::cmd("GET").arg(name).query_async(db).await?)
}

async fn redis_deletes_and_adds_only_for_a_token_that_is_not_older(url: String) -> Result<()> {
    let mut db = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    let name = unique("verbs");
    ensure!(increment(&mut db, &name, token(7), 5).await? == 5);
    ensure!(increment(&mut db, &name, token(7), -2).await? == 3);
    admit(&mut db, &name, token(8)).await?;
    let errors = [
        increment(&mut db, &name, token(7), 1).await.map(drop),
        delete(&mut db, &name, token(7)).await.map(drop),
        set(&mut db, &name, token(7), 9).await,
    ];
    for error in errors {
        let error = error.err().context("7 after 8")?;
        let stale = error.stale().with_context(|| error.to_string())?;
        ensure!((stale.token(), stale.seen()) == (token(7), token(8)), "{stale}");
    }
    ensure!(get(&mut db, &name).await? == Some(3), "a refused one changed something");
    ensure!(delete(&mut db, &name, token(8)).await?);
    ensure!(!delete(&mut db, &name, token(8)).await?, "it was there again");
    // The fence outlives the value.
    ensure!(set(&mut db, &name, token(7), 1).await.is_err());
    ensure!(get(&mut db, &name).await?.is_none());
    Ok(())
}

async fn a_script_of_a_reader_includes_the_check(url: String) -> Result<()> {
    let mut db = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    let name = unique("reader");
    let script = Script::new(&format!(
        "{CHECK} return tenure_admit_shared(KEYS[2], ARGV[1]) or redis.call('GET', KEYS[1])"
    ));
    set(&mut db, &name, token(7), 2).await?;
    let mut read = async |shown: u64| {
        let mut call = script.key(&name);
        call.key(key(&name)).arg(shown);
        call.invoke_async::<i64>(&mut db).await
    };
    ensure!(read(9).await? == 2 && read(8).await? == 2);
    let error = refused(read(6).await.err().context("6 after 7")?, token(6));
    ensure!(error.to_string() == "token 6 is stale: 7 was here before", "{error}");
    let error = set(&mut db, &name, token(7), 1).await.err().context("7 after 9")?;
    let text = "token 7 is stale: 9 was here before, as a reader";
    ensure!(error.to_string() == text, "{error}");
    Ok(())
}

async fn a_script_of_the_caller_includes_the_check(url: String) -> Result<()> {
    let mut db = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    let name = unique("script");
    let script = Script::new(&format!("{CHECK}{SELL}"));
    set(&mut db, &name, token(7), 2).await?;
    let mut sell = async |shown: &str| {
        let mut call = script.key(&name);
        call.key(key(&name)).arg(shown);
        call.invoke_async::<i64>(&mut db).await
    };
    ensure!(sell("8").await? == 1);
    let error = refused(sell("7").await.err().context("7 after 8")?, token(7));
    ensure!(error.to_string() == "token 7 is stale: 8 was here before", "{error}");
    for garbage in ["", "x", "-1", "0", "07", "8.5", "1e3", "92233720368547758070"] {
        let error = sell(garbage).await.err().with_context(|| format!("`{garbage}`"))?;
        let error = refused(error, token(8));
        ensure!(error.to_string().contains("where a token should be"), "`{garbage}`: {error}");
    }
    ensure!(sell("8").await? == 1);
    ensure!(sell("9").await? == 0, "there were two");
    Ok(())
}
