//! A resource has one fence, by whatever name and by whichever client it is used.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use http::{Request, StatusCode};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts};
use rusqlite::Connection;
use tenure::fence;
use tenure::fence::Fences;
use tenure::fence::http::{FenceLayer, path};
use tenure::fence::sql::{Dialect, Table};
use tower_layer::Layer;
use tower_service::Service;

use crate::registers::{Numbers, connect_postgres, open};
use crate::{cases, token, unique};

cases! {
    a_file_has_one_fence_by_whatever_path_it_is_found on &["file"];
    a_file_with_a_second_name_is_refused on &["file"];
    a_replaced_file_keeps_its_rights on &["file"];
    a_fence_that_may_not_be_on_the_disk_is_written_again on &["file"];
    one_path_has_one_fence_however_it_is_written on &["http"];
    two_roles_have_one_fence on &["postgres"];
    a_second_table_of_fences_in_sight_is_refused on &["postgres"];
    keys_of_redis_with_and_without_a_tag_have_fences_of_their_own on &["redis"];
    a_sweep_of_less_than_no_days_forgets_nothing_of_today on &["mysql", "postgres", "sqlite"];
}

fn folder(url: &str) -> Result<PathBuf> {
    Ok(fs::canonicalize(url.trim_start_matches("file://"))?)
}

async fn a_file_has_one_fence_by_whatever_path_it_is_found(url: String) -> Result<()> {
    let folder = folder(&url)?;
    let file = folder.join(unique("report"));
    let link = folder.join(unique("latest"));
    symlink(&file, &link)?;
    // There is nothing behind the link: a write there would create a file elsewhere.
    ensure!(fence::file::admit(&link, token(7)).is_err());
    // Also before the file is there.
    drop(fence::file::admit(&file, token(8))?);
    fs::write(&file, "100")?;
    symlink(&folder, folder.join("other"))?;
    fs::create_dir(folder.join("sub"))?;
    let name = file.file_name().context("a name")?;
    let deep = folder.join("other").join(".").join(name);
    for path in [&link, &deep, &folder.join("sub/..").join(name)] {
        let refused = fence::file::admit(path, token(7)).err();
        let refused = refused.with_context(|| format!("7 after 8 by {}", path.display()))?;
        ensure!(refused.stale().is_some(), "{refused}");
        let admitted = fence::file::admit(path, token(8))?;
        ensure!(admitted.path() == file);
    }
    // A folder, with and without the slash at its end.
    let inside = folder.join(unique("folder"));
    fs::create_dir(&inside)?;
    drop(fence::file::admit(&inside, token(8))?);
    ensure!(fence::file::admit(inside.join(""), token(7)).is_err(), "the slash made another of it");
    ensure!(fence::file::admit("/", token(7)).is_err(), "the root has no name");
    Ok(())
}

async fn a_file_with_a_second_name_is_refused(url: String) -> Result<()> {
    let folder = folder(&url)?;
    let file = folder.join(unique("report"));
    let second = folder.join(unique("report"));
    fs::write(&file, "100")?;
    drop(fence::file::admit(&file, token(8))?);
    fs::hard_link(&file, &second)?;
    for path in [&file, &second] {
        let refused = fence::file::admit(path, token(9)).err().context("a second name")?;
        ensure!(refused.to_string().contains("hard link"), "{refused}");
    }
    fs::remove_file(&second)?;
    ensure!(fence::file::admit(&file, token(7)).is_err_and(|refused| refused.stale().is_some()));
    drop(fence::file::admit(&file, token(9))?);
    Ok(())
}

async fn a_replaced_file_keeps_its_rights(url: String) -> Result<()> {
    let folder = folder(&url)?;
    let elsewhere = tempfile::tempdir()?;
    let file = folder.join(unique("secret"));
    for mode in [0o600, 0o640, 0o444, 0o664] {
        fs::write(&file, "100")?;
        fs::set_permissions(&file, fs::Permissions::from_mode(mode))?;
        fence::file::admit(&file, token(8))?.replace("99")?;
        let found = fs::metadata(&file)?.mode() & 0o7777;
        ensure!(found == mode, "{mode:o} is {found:o} now");
        fs::remove_file(&file)?;
    }
    // A link where the next content is written is not followed.
    fs::write(&file, "100")?;
    let precious = elsewhere.path().join("precious");
    fs::write(&precious, "precious")?;
    for end in [".new", ".fence.new", ".fence.data"] {
        let mut name = file.clone().into_os_string();
        name.push(end);
        symlink(&precious, Path::new(&name))?;
    }
    fence::file::admit(&file, token(9))?.replace("98")?;
    ensure!(fs::read_to_string(&precious)? == "precious", "written through a link");
    ensure!(fs::read_to_string(&file)? == "98");
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&file, Some(12345), Some(54321))?;
        fence::file::admit(&file, token(9))?.replace("97")?;
        let found = fs::metadata(&file)?;
        ensure!((found.uid(), found.gid()) == (12345, 54321), "it has another owner");
    }
    Ok(())
}

/// What is left when the last sync failed: the next content is there beside the same token.
async fn a_fence_that_may_not_be_on_the_disk_is_written_again(url: String) -> Result<()> {
    let file = folder(&url)?.join(unique("report"));
    drop(fence::file::admit(&file, token(8))?);
    let [fence, next] = [".fence", ".fence.new"].map(|end| {
        let mut name = file.clone().into_os_string();
        name.push(end);
        PathBuf::from(name)
    });
    let first = fs::metadata(&fence)?.ino();
    drop(fence::file::admit(&file, token(8))?);
    ensure!(fs::metadata(&fence)?.ino() == first, "written again without need");
    fs::write(&next, "")?;
    drop(fence::file::admit(&file, token(8))?);
    ensure!(fs::metadata(&fence)?.ino() != first, "not written again");
    ensure!(!next.exists() && fs::read_to_string(&fence)? == "8\n");
    Ok(())
}

async fn one_path_has_one_fence_however_it_is_written(_: String) -> Result<()> {
    let layer = FenceLayer::new(Fences::new(10), path);
    let mut service = layer.layer(Numbers::default());
    let mut put = async |path: &str, number: u64| {
        let mut request = Request::put(path).body("1".to_owned())?;
        fence::http::set(request.headers_mut(), token(number));
        let Ok(response) = service.call(request).await;
        anyhow::Ok(response.status())
    };
    ensure!(put("/stock/42", 8).await? == 200);
    for path in
        ["/stock/42", "/stock/%34%32", "/stock/42/", "//stock//42", "/stock/./42", "/%73tock/42"]
    {
        let status = put(path, 7).await?;
        ensure!(status == StatusCode::PRECONDITION_FAILED, "7 after 8 at {path}: {status}");
    }
    ensure!(put("/stock/43", 7).await? == 200);
    Ok(())
}

/// Each role has a schema of its own before `public` in its path, as is usual.
async fn two_roles_have_one_fence(url: String) -> Result<()> {
    let name = unique("roles");
    let mut app = connect_postgres(&url).await?;
    let mut web = connect_postgres(&url).await?;
    for (db, schema) in [(&app, "fence_app"), (&web, "fence_web")] {
        let sql =
            format!("CREATE SCHEMA IF NOT EXISTS {schema}; SET search_path = {schema}, public");
        db.batch_execute(&sql).await?;
        fence::tokio_postgres::create(db).await?;
    }
    fence::tokio_postgres::contact(&mut app, &name, token(8)).await?;
    let refused = fence::tokio_postgres::contact(&mut web, &name, token(7)).await;
    let refused = refused.err().context("7 after 8, by another role")?;
    ensure!(refused.stale().is_some_and(|stale| stale.seen() == token(8)), "{refused}");
    // Unless a schema is named.
    let table = fence::tokio_postgres::Table::in_schema("fence_web");
    web.batch_execute("SET search_path = nowhere").await?;
    table.create(&web).await?;
    table.contact(&mut web, &name, token(7)).await?;
    let tx = web.transaction().await?;
    ensure!(table.admit(&tx, &name, token(6)).await.is_err());
    drop(tx);
    web.batch_execute("DROP SCHEMA fence_web CASCADE").await?;
    Ok(())
}

async fn a_second_table_of_fences_in_sight_is_refused(url: String) -> Result<()> {
    let db = connect_postgres(&url).await?;
    db.batch_execute(
        "CREATE SCHEMA fence_old; CREATE TABLE fence_old.tenure_fence (resource text);
         SET search_path = public, fence_old",
    )
    .await?;
    let error = fence::tokio_postgres::create(&db).await.err().context("two are in sight")?;
    let error = error.as_db_error().context("of the database")?.message().to_owned();
    ensure!(error.contains("in the schema fence_old"), "{error}");
    db.batch_execute("SET search_path = public").await?;
    fence::tokio_postgres::create(&db).await?;
    db.batch_execute("DROP SCHEMA fence_old CASCADE").await?;
    Ok(())
}

async fn keys_of_redis_with_and_without_a_tag_have_fences_of_their_own(url: String) -> Result<()> {
    let name = unique("tag");
    open(&url, &name).await?.write(1, Some(token(9))).await??;
    open(&url, &format!("{{{name}}}")).await?.write(1, Some(token(3))).await??;
    Ok(())
}

async fn a_sweep_of_less_than_no_days_forgets_nothing_of_today(url: String) -> Result<()> {
    let name = unique("today");
    open(&url, &name).await?.write(1, Some(token(8))).await??;
    match url.split_once("://").context("a scheme")?.0 {
        "mysql" => {
            let mut db = Conn::new(Opts::from_url(&url)?).await?;
            db.exec_drop(Table::new(Dialect::MySql).sweep(), (-3_i64,)).await?;
        }
        "postgres" => {
            let db = connect_postgres(&url).await?;
            db.execute(&Table::new(Dialect::Postgres).sweep(), &[&-3_i64]).await?;
        }
        _ => {
            let db = Connection::open(url.trim_start_matches("sqlite://"))?;
            db.execute(&Table::new(Dialect::Sqlite).sweep(), [-3_i64])?;
        }
    }
    ensure!(open(&url, &name).await?.write(2, Some(token(7))).await?.is_err(), "it was forgotten");
    Ok(())
}
