//! The connection to the agents: `http` sends requests, `api` has the requests that locks are made
//! of, `base64` encodes the values of keys.

mod acl_token;
pub(crate) mod api;
mod base64;
pub(crate) mod http;
