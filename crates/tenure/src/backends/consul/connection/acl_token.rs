//! The ACL token that every request carries: the one of the URL, or what the caller's code gives.

use hyper::header::HeaderValue;
use tokio::sync::Mutex;

use crate::error::{Error, ErrorKind, Result};
use crate::support::credentials::UserLogin;

/// The token in use, and where the next one comes from.
pub(crate) struct AclToken {
    login: UserLogin,
    /// `None` if there is none, or while none was given yet.
    current: Mutex<Option<HeaderValue>>,
}

impl AclToken {
    pub(crate) fn new(login: UserLogin) -> Result<AclToken> {
        let current = if login.source.is_some() { None } else { header(&login)? };
        Ok(AclToken { login, current: Mutex::new(current) })
    }

    /// The token for a request.
    pub(crate) async fn get(&self) -> Result<Option<HeaderValue>> {
        let mut current = self.current.lock().await;
        if current.is_none() && self.login.source.is_some() {
            *current = header(&self.login.current().await?)?;
        }
        Ok(current.clone())
    }

    /// The agent refused this token: requests another, unless that was done meanwhile. `false` if
    /// there is no other.
    pub(crate) async fn replace(&self, refused: Option<&HeaderValue>) -> Result<bool> {
        if self.login.source.is_none() {
            return Ok(false);
        }
        let mut current = self.current.lock().await;
        if current.as_ref() == refused {
            *current = header(&self.login.current().await?)?;
        }
        Ok(current.as_ref() != refused)
    }
}

fn header(login: &UserLogin) -> Result<Option<HeaderValue>> {
    let Some(token) = login.password.as_ref().or(login.user.as_ref()) else { return Ok(None) };
    let message = "the ACL token has characters that an HTTP header cannot carry";
    let refused = |_| Error::new(ErrorKind::Invalid, message);
    let mut value = HeaderValue::from_str(token).map_err(refused)?;
    value.set_sensitive(true);
    Ok(Some(value))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::support::credentials::{Credentials, Source};

    #[tokio::test]
    async fn a_refused_token_is_replaced_once_for_all_requests() {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        let source = Source::new(move || {
            let number = counted.fetch_add(1, Ordering::Relaxed);
            async move { Ok::<_, Error>(Credentials::password(format!("token-{number}"))) }
        });
        let token =
            AclToken::new(UserLogin { source: Some(source), ..UserLogin::default() }).unwrap();
        let first = token.get().await.unwrap();
        assert_eq!(first, Some(HeaderValue::from_static("token-0")));
        assert_eq!(token.get().await.unwrap(), first, "kept until it is refused");
        for _ in 0..3 {
            assert!(token.replace(first.as_ref()).await.unwrap(), "there is another");
        }
        assert_eq!(token.get().await.unwrap(), Some(HeaderValue::from_static("token-1")));
        assert_eq!(calls.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn a_token_of_the_url_is_not_replaced() {
        let login = UserLogin { user: Some("u".into()), ..UserLogin::default() };
        let token = AclToken::new(login).unwrap();
        let first = token.get().await.unwrap();
        assert_eq!(first, Some(HeaderValue::from_static("u")));
        assert!(!token.replace(first.as_ref()).await.unwrap());
        let login = UserLogin { password: Some("a\nb".into()), ..UserLogin::default() };
        assert!(AclToken::new(login).is_err());
    }
}
