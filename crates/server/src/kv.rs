//! The service KV: etcd's keys and values.
//!
//! Each call is a function of [`Errand`] here, and has two callers: [`front`](crate::front), which is
//! lean, and tonic, for whoever comes to the service another way, such as the JSON gateway.

use std::pin::Pin;

use clearlane_member::range::Found;
use clearlane_member::range_stream::RangeStream;
use clearlane_member::requests::Reply;
use clearlane_member::stages::{Card, Stage};
use clearlane_member::{Handle, Trouble, range};
use clearlane_proto::etcdserverpb::kv_server::Kv;
use clearlane_proto::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse,
    InternalRaftRequest, PutRequest, PutResponse, RangeRequest, RangeResponse, RangeStreamResponse,
    TxnRequest, TxnResponse,
};
use http::HeaderMap;
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use crate::caller::{self, Who};
use crate::status::{self, mismatch};

/// One call of a client: at which member, and where its time goes.
#[derive(Debug)]
pub struct Errand {
    member: Handle,
    /// Stamped at the end of each stage.
    pub card: Card,
}

impl Errand {
    /// Begins, if this member may answer a call with this head at all.
    pub fn begin(member: &Handle, head: &HeaderMap) -> Result<Errand, Status> {
        caller::admit(member, head, Who::Anybody)?;
        let card = Card::begin().numbered(member.node().recording().number());
        let member = match caller::patience(head) {
            Some(patience) => member.until(card.after(patience)),
            None => member.clone(),
        };
        Ok(Errand { member, card })
    }

    /// Waits for something up to the call's deadline.
    pub async fn in_time<T>(&self, work: impl Future<Output = T>) -> Result<T, Status> {
        self.member.in_time(work).await.map_err(|trouble| status::of(&trouble))
    }

    /// The call's deadline, if it has one.
    pub fn until_ns(&self) -> Option<u64> {
        self.member.until_ns()
    }

    /// A learner answers only what may be old.
    fn votes(&self) -> Result<(), Status> {
        match self.member.node().status().is_learner() {
            true => Err(status::of(&Trouble::Learner)),
            false => Ok(()),
        }
    }

    /// Reads a range of keys.
    pub async fn range(&mut self, request: RangeRequest) -> Result<Found, Status> {
        if !request.serializable {
            self.votes()?;
        }
        let found = range::range(&self.member, request, &mut self.card).await;
        if found.is_err() {
            // What was refused has taken its time, too.
            self.card.stamp(Stage::Backend);
        }
        found.map_err(|trouble| status::of(&trouble))
    }

    /// Puts a key.
    pub async fn put(&mut self, request: PutRequest) -> Result<PutResponse, Status> {
        let put = Some(request);
        match self.write(Box::new(InternalRaftRequest { put, ..Default::default() })).await? {
            Reply::Put(response) => Ok(response),
            reply => Err(mismatch(&reply)),
        }
    }

    /// Deletes a range of keys.
    pub async fn delete_range(
        &mut self,
        request: DeleteRangeRequest,
    ) -> Result<DeleteRangeResponse, Status> {
        let delete_range = Some(request);
        match self
            .write(Box::new(InternalRaftRequest { delete_range, ..Default::default() }))
            .await?
        {
            Reply::DeleteRange(response) => Ok(response),
            reply => Err(mismatch(&reply)),
        }
    }

    /// Runs a transaction.
    pub async fn txn(&mut self, request: TxnRequest) -> Result<TxnResponse, Status> {
        self.votes()?;
        let reply = self.member.txn(request, &mut self.card).await;
        match reply.map_err(|trouble| status::of(&trouble))? {
            Reply::Txn(response) => Ok(response),
            reply => Err(mismatch(&reply)),
        }
    }

    /// Forgets the past.
    pub async fn compact(
        &mut self,
        request: CompactionRequest,
    ) -> Result<CompactionResponse, Status> {
        self.votes()?;
        let reply = self.member.compact(request).await;
        self.card.stamp(Stage::Apply);
        match reply.map_err(|trouble| status::of(&trouble))? {
            Reply::Compact(response) => Ok(response),
            reply => Err(mismatch(&reply)),
        }
    }

    async fn write(&mut self, request: Box<InternalRaftRequest>) -> Result<Reply, Status> {
        self.votes()?;
        let reply = self.member.write(request).await;
        self.card.stamp(Stage::Apply);
        reply.map_err(|trouble| status::of(&trouble))
    }
}

/// The pages of a range.
pub type PageStream = Pin<Box<dyn Stream<Item = Result<RangeStreamResponse, Status>> + Send>>;

/// Reads the next page when the one before has gone.
fn pages(range: RangeStream) -> PageStream {
    Box::pin(futures_util::stream::unfold(Some(range), |range| async {
        let mut range = range?;
        match range.next().await {
            Ok(page) => {
                let range_response = Some(page?);
                Some((Ok(RangeStreamResponse { range_response }), Some(range)))
            }
            Err(trouble) => Some((Err(status::of(&trouble)), None)),
        }
    }))
}

/// The service, for one thread.
#[derive(Clone, Debug)]
pub struct KvService {
    member: Handle,
}

impl KvService {
    /// In front of a member.
    pub fn new(member: Handle) -> KvService {
        KvService { member }
    }

    fn errand<M>(&self, request: &Request<M>) -> Result<Errand, Status> {
        Errand::begin(&self.member, request.metadata().as_ref())
    }
}

#[tonic::async_trait]
impl Kv for KvService {
    type RangeStreamStream = PageStream;

    async fn range(
        &self,
        request: Request<RangeRequest>,
    ) -> Result<Response<RangeResponse>, Status> {
        let found = self.errand(&request)?.range(request.into_inner()).await?;
        found.whole(&self.member).await.map(Response::new).map_err(|trouble| status::of(&trouble))
    }

    async fn range_stream(
        &self,
        request: Request<RangeRequest>,
    ) -> Result<Response<PageStream>, Status> {
        let errand = self.errand(&request)?;
        errand.votes()?;
        let opened = RangeStream::open(errand.member, request.into_inner());
        Ok(Response::new(pages(opened.map_err(|trouble| status::of(&trouble))?)))
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        let mut errand = self.errand(&request)?;
        errand.put(request.into_inner()).await.map(Response::new)
    }

    async fn delete_range(
        &self,
        request: Request<DeleteRangeRequest>,
    ) -> Result<Response<DeleteRangeResponse>, Status> {
        let mut errand = self.errand(&request)?;
        errand.delete_range(request.into_inner()).await.map(Response::new)
    }

    async fn txn(&self, request: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        let mut errand = self.errand(&request)?;
        errand.txn(request.into_inner()).await.map(Response::new)
    }

    async fn compact(
        &self,
        request: Request<CompactionRequest>,
    ) -> Result<Response<CompactionResponse>, Status> {
        let mut errand = self.errand(&request)?;
        errand.compact(request.into_inner()).await.map(Response::new)
    }
}
