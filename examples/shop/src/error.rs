//! Which error is which status. `ErrorKind::of` finds what tenure says in any error, so that `?` is
//! all that handlers need.

use std::error::Error;

use axum::Json;
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use tenure::{Busy, ErrorKind};

use crate::stock::StockError;

/// Any error, as a response.
#[derive(Debug)]
pub(crate) struct ApiError(Box<dyn Error + Send + Sync>);

impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for ApiError {
    fn from(error: E) -> ApiError {
        ApiError(error.into())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let error = self.0.as_ref();
        // Who holds it, for how long, and what for: the same JSON as `tenure show` prints.
        if let Some(busy) = error.downcast_ref::<Busy>() {
            return (StatusCode::CONFLICT, Json(busy)).into_response();
        }
        let status = match (ErrorKind::of(error), error.downcast_ref::<StockError>()) {
            (_, Some(StockError::SoldOut)) => StatusCode::GONE,
            (_, Some(StockError::Unknown)) => StatusCode::NOT_FOUND,
            // Nothing was sold, or not known to be: the client may try again.
            (Some(ErrorKind::Lost | ErrorKind::Unavailable | ErrorKind::Closed), _) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            // The item is part of the key.
            (Some(ErrorKind::Invalid), _) => StatusCode::BAD_REQUEST,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        if status.is_server_error() {
            eprintln!("shop: {error}");
        }
        let body = Json(json!({ "error": error.to_string() }));
        match status {
            StatusCode::SERVICE_UNAVAILABLE => (status, [(RETRY_AFTER, "1")], body).into_response(),
            _ => (status, body).into_response(),
        }
    }
}
