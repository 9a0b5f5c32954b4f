//! A row of a table: a request, the state before it, and the part of the reply that is shown.

use bytes::Bytes;
use prost::Message;

use crate::call::Call;

/// A function that describes a successful reply. A cell shows `ok` and this text. The text may be
/// empty.
pub(crate) type Fact = Box<dyn Fn(&Bytes) -> String>;

pub(crate) struct Row {
    pub(crate) method: &'static str,
    /// A text that distinguishes the row from the other rows of its method.
    pub(crate) shape: &'static str,
    /// A function that returns the request for the user who sends it.
    pub(crate) request: Box<dyn Fn(&str) -> Bytes>,
    pub(crate) fact: Fact,
    /// Calls that root makes before each cell.
    pub(crate) before: Vec<Call>,
    /// Calls that root makes after each cell. They may fail if there is nothing to do.
    pub(crate) after: Vec<Call>,
    /// If true, the call may invalidate tokens, so all users log in again after each cell.
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

    /// Creates a row whose request names the user who sends it. In the columns without a user, `-`
    /// and `wrong`, the request names root.
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
