//! Tests of users and tokens, with a stub server that requires tokens.

use clearlane_client::{Client, Error, Options};

use crate::stub::Stub;
use crate::with_timeout;

#[tokio::test]
async fn a_token_is_fetched_once_and_again_when_it_is_refused() {
    let stub = Stub::default();
    let options = Options::new().user("root", "secret");
    let client = Client::connect([stub.start().await], options).await.unwrap();
    for _ in 0..3 {
        assert_eq!(client.get("a").await.unwrap().count, 1);
        client.put("a", "1").await.unwrap();
    }
    assert_eq!(stub.given(), 1, "reused");
    stub.expire();
    client.put("a", "2").await.unwrap();
    assert_eq!(stub.given(), 2);
    // Many requests that are rejected at the same time fetch only one token.
    stub.expire();
    let reads: Vec<_> = (0..20)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.get("a").await })
        })
        .collect();
    for read in reads {
        with_timeout(read).await.unwrap().unwrap();
    }
    assert_eq!(stub.given(), 3);
    assert!(matches!(client.delete("a").await, Err(Error::PermissionDenied)));
}

#[tokio::test]
async fn who_is_not_let_in_is_told_so() {
    let stub = Stub::default();
    let endpoint = stub.start().await;
    let wrong = Options::new().user("root", "guess");
    let error = Client::connect([&endpoint], wrong).await.unwrap_err();
    assert!(matches!(error, Error::AuthFailed), "{error:?}");
    let anonymous = Client::connect([&endpoint], Options::new()).await.unwrap();
    let error = anonymous.get("a").await.unwrap_err();
    assert!(matches!(error, Error::Unauthenticated(_)), "{error:?}");
}

#[tokio::test]
async fn a_password_where_none_is_wanted_does_no_harm() {
    let stub = Stub::without_users();
    let options = Options::new().user("root", "secret");
    let client = Client::connect([stub.start().await], options).await.unwrap();
    client.put("a", "1").await.unwrap();
    assert_eq!(stub.given(), 0);
}
