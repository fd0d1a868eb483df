import sys,os; sys.path.insert(0,os.environ.get('REPO','/work/main'))
import torch, threading, time
import safecompile.patch_all
from safecompile import _install, safe_compile
import torch._dynamo
from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list as lst
n=[0]
def be(gm,ex): n[0]+=1; time.sleep(.2); return gm.forward
def body(x): return (x+1)*2
f=safe_compile(body,backend=be,dynamic=False)
def go(N,shapes,f,body,n):
    n[0]=0
    b=threading.Barrier(N); errs=[]
    def run(i):
        try:
            for s in shapes:
                b.wait(); r=f(torch.ones(s)); assert torch.equal(r, body(torch.ones(s)))
        except BaseException as e: errs.append(repr(e))
    ts=[threading.Thread(target=run,args=(i,)) for i in range(N)]; t=time.time(); [x.start() for x in ts]; [x.join(60) for x in ts]
    print(sys.version_info[:2], torch.__version__, N,"threads",len(shapes),"shapes: compiles",n[0],"entries",len(lst(body.__code__)),errs[:2],"%.2fs"%(time.time()-t), _install.state(), flush=True )
    return n[0]
assert go(32,[3,4,5,6,7,8,9,10],f,body,n)==8
def body2(x): return (x+1)*2-1
f2=safe_compile(body2,backend=be)
go(12,[3,4,5,6,7,8,9,10],f2,body2,n)
assert all(v=="on" or v=="waiting" for v in _install.state().values()), _install.state()
