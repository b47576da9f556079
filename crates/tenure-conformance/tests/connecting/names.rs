//! What an operator sees of a client's connections, and options of the application's own URL.

use anyhow::{Result, ensure};
use tenure_conformance::context::acquire_free;
use tenure_conformance::server_cases;
use tenure_servers::Cluster;
use tenure_servers::wire::postgres::Postgres as Wire;
use tenure_servers::wire::redis::execute;

server_cases! {
    connections_to_redis_have_a_name Redis;
    connections_to_postgres_have_the_name_of_the_url Postgres;
}

async fn connections_to_redis_have_a_name(cluster: &Cluster) -> Result<()> {
    let client = tenure::connect(&cluster.url()).await?;
    let guard = acquire_free(&client.lock("k")).await?;
    let list = execute(cluster.node().port(), &["CLIENT", "LIST"])?;
    let list = list.text().unwrap_or_default();
    ensure!(list.lines().any(|line| line.contains(" name=tenure ")), "{list}");
    guard.release().await?;
    Ok(())
}

async fn connections_to_postgres_have_the_name_of_the_url(cluster: &Cluster) -> Result<()> {
    let options = "application_name=shop%20locks&options=-c%20work_mem%3D5MB&connect_timeout=10\
                   &target_session_attrs=read-write";
    let client = tenure::connect(&cluster.url_with(options)).await?;
    let guard = acquire_free(&client.lock("k")).await?;
    let names = "SELECT application_name FROM pg_stat_activity WHERE application_name <> ''";
    let names = Wire::connect(cluster.node().port())?.query(names)?;
    ensure!(names.iter().any(|name| name == "shop locks"), "{names:?}");
    ensure!(!names.iter().any(|name| name == "tenure"), "{names:?}");
    guard.release().await?;
    Ok(())
}
