//! A row of a table: what is asked, from which state, and what is seen of the reply.

use bytes::Bytes;
use prost::Message;

use crate::call::Call;

/// What is written behind `ok`; empty where that says all.
pub(crate) type Fact = Box<dyn Fn(&Bytes) -> String>;

pub(crate) struct Row {
    pub(crate) method: &'static str,
    /// What tells it from the other rows of this method.
    pub(crate) shape: &'static str,
    /// For the user who asks.
    pub(crate) request: Box<dyn Fn(&str) -> Bytes>,
    pub(crate) fact: Fact,
    /// By root, before each cell.
    pub(crate) before: Vec<Call>,
    /// By root, after each cell. It may find nothing to do, and fail.
    pub(crate) after: Vec<Call>,
    /// A cell may have ended tokens.
    pub(crate) is_end_of_tokens: bool,
}

impl Row {
    pub(crate) fn new(method: &'static str, shape: &'static str, request: impl Message) -> Row {
        let request = Bytes::from(request.encode_to_vec());
        Row {
            method,
            shape,
            request: Box::new(move |_| request.clone()),
            fact: Box::new(|_| String::new()),
            before: Vec::new(),
            after: Vec::new(),
            is_end_of_tokens: false,
        }
    }

    /// With a request that names the user who asks; without a token, it names root.
    pub(crate) fn by_user<M: Message>(
        method: &'static str,
        shape: &'static str,
        request: impl Fn(&str) -> M + 'static,
    ) -> Row {
        let request = move |user: &str| Bytes::from(request(user).encode_to_vec());
        Row { request: Box::new(request), ..Row::new(method, shape, ()) }
    }

    pub(crate) fn fact<M: Message + Default>(self, fact: impl Fn(M) -> String + 'static) -> Row {
        let fact = move |reply: &Bytes| fact(M::decode(reply.clone()).unwrap());
        Row { fact: Box::new(fact), ..self }
    }

    pub(crate) fn before(mut self, method: &'static str, request: impl Message) -> Row {
        self.before.push(Call::new(method, request));
        self
    }

    pub(crate) fn after(mut self, method: &'static str, request: impl Message) -> Row {
        self.after.push(Call::new(method, request));
        self
    }

    pub(crate) fn ends_tokens(self) -> Row {
        Row { is_end_of_tokens: true, ..self }
    }

    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.method, self.shape)
    }
}
