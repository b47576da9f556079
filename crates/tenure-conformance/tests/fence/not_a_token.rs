//! What is not a token is refused: in the fence, in the table, and in the header.

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::registers::open;
use crate::{cases, token, unique};

cases! {
    a_fence_with_garbage_in_it_admits_no_token on &["file", "redis"];
    garbage_does_not_get_into_the_table on
        &["mysql", "postgres", "sqlite", "sqlx-mysql", "sqlx-postgres"];
    a_header_that_is_no_token_is_a_bad_request on &["http"];
}

async fn a_fence_with_garbage_in_it_admits_no_token(url: String) -> Result<()> {
    let mut register = open(&url, &unique("garbage")).await?;
    for garbage in
        ["", "x", "-1", "0", "1.5", "9223372036854775808", "1 2", ";8", "8;", "8;0", "8;x", "1;2;3"]
    {
        register.write(1, Some(token(8))).await??;
        register.spoil(Some(garbage)).await?;
        for number in [1, 9] {
            let error = register.write(2, Some(token(number))).await.err();
            let error = error.with_context(|| format!("`{garbage}` admitted {number}"))?;
            ensure!(error.to_string().contains("where a token should be"), "{error}");
        }
        register.spoil(None).await?;
    }
    Ok(())
}

async fn garbage_does_not_get_into_the_table(url: String) -> Result<()> {
    let mut register = open(&url, &unique("garbage")).await?;
    register.write(1, Some(token(8))).await??;
    for garbage in ["x", "-1", "0"] {
        ensure!(register.spoil(Some(garbage)).await.is_err(), "`{garbage}` was stored");
    }
    ensure!(register.write(2, Some(token(7))).await?.is_err());
    Ok(())
}

async fn a_header_that_is_no_token_is_a_bad_request(url: String) -> Result<()> {
    let address = url.trim_start_matches("http://");
    let status = async |headers: String| {
        let mut stream = TcpStream::connect(address).await?;
        let text = format!("GET /garbage HTTP/1.1\r\n{headers}content-length: 0\r\n\r\n");
        stream.write_all(text.as_bytes()).await?;
        let mut line = [0; 12];
        stream.read_exact(&mut line).await?;
        anyhow::Ok(String::from_utf8_lossy(&line[9..]).into_owned())
    };
    for garbage in [
        "x",
        "-1",
        "0",
        "+7",
        "07",
        "1.5",
        "9223372036854775808",
        "1, 2",
        "7;",
        ";shared",
        "7; shared",
        "7;Shared",
        "07;shared",
        "7;shared;shared",
    ] {
        let status = status(format!("fencing-token: {garbage}\r\n")).await?;
        ensure!(status == "400", "`{garbage}`: {status}");
    }
    ensure!(status("fencing-token: 7\r\nfencing-token: 8\r\n".into()).await? == "400");
    ensure!(status("Fencing-Token: 8\r\n".into()).await? == "200");
    ensure!(status("fencing-token: 7\r\n".into()).await? == "412");
    Ok(())
}
